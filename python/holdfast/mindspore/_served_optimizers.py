"""set_param_ps() for cells and parameters, and the optimizers that leave updates to servers.

MindSpore's graph compiler reads the source of the construct() functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.nn import Optimizer

from holdfast import _tables
from holdfast._errors import UserError
from holdfast._tables import Rule
from holdfast.mindspore import _operators
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._imported import COMPILERS, either, imported
from holdfast.mindspore._served import MOST_VALUES, Part, Served

_MOST_BYTES: Final = 2**31 - 1  # Of a parameter: MindSpore's INT_MAX.
_HOW: Final = (
    "Must complete following two steps before calling set_param_ps: \n"
    "1. context.set_ps_context(enable_ps=True) \n"
    "2. export MS_ROLE environment variable \n"
    "Please refer to the official website for detailed usage."
)


def apply(engine: Engine) -> None:
    """Install all replacements."""
    _contexts(engine)
    _names(engine)
    usual = Optimizer.__init__
    kinds = {nn.Momentum: _momentum, nn.SGD: _sgd, nn.Adam: _adam, nn.LazyAdam: _adam}
    kinds[nn.FTRL] = _ftrl

    @_as(usual)
    def init(self: Any, learning_rate: Any, parameters: Any, *given: Any, **named: Any) -> None:
        usual(self, learning_rate, parameters, *given, **named)
        served = [p for p in self.parameters if id(p) in engine.served.ids]
        if served and type(self) not in kinds:
            raise UserError(
                f"parameter '{served[0].name}' has set_param_ps(), and servers have no optimizer "
                f"{type(self).__name__}; they have {', '.join(k.__name__ for k in kinds)}"
            )
        engine.served.others |= len(served) < len(self.parameters)

    Optimizer.__init__ = init
    for kind, rule in kinds.items():
        _watch(engine.served, kind, rule)
    _watch_graphs(engine)


def _as(usual: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a replacement the signature of what it replaces, which MindSpore asks for."""

    def signed(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__signature__ = inspect.signature(usual)  # type: ignore[attr-defined]
        return function

    return signed


def _contexts(engine: Engine) -> None:
    # The usual functions switch MindSpore's own servers on, which its 2.10 has not any more.
    contexts, served = imported("mindspore.context"), engine.served
    usual, usual_get = contexts._set_ps_context, contexts._get_ps_context
    usual_reset = contexts._reset_ps_context

    def set_context(**named: Any) -> None:
        if "enable_ps" in named:
            wanted = named.pop("enable_ps")  # MindSpore has checked that it is a bool.
            if wanted:
                _see_servers(engine)
            served.enabled = wanted
        usual(**named)

    def get_context(name: str) -> Any:
        return served.enabled if name == "enable_ps" else usual_get(name)

    def reset() -> None:
        served.enabled = False
        usual_reset()

    contexts._set_ps_context, contexts._get_ps_context = set_context, get_context
    contexts._reset_ps_context = reset


def _see_servers(engine: Engine) -> None:
    if engine.servers == 0:
        raise UserError(
            "set_ps_context(enable_ps=True) needs parameter servers, and this job has none: start "
            "it by `holdfast msrun --server_num=1 ...`, or with MS_SERVER_NUM=1 in the environment "
            "of all its processes and one process with MS_ROLE=MS_PSERVER"
        )
    if engine.tft:
        raise UserError(
            "set_ps_context(enable_ps=True) and MS_ENABLE_TFT do not go together: a job with "
            "parameter servers leaves no last checkpoint; unset MS_ENABLE_TFT"
        )


def _names(engine: Engine) -> None:
    served = engine.served

    def of_parameter(self: Any, init_in_server: bool = False) -> None:
        from mindspore import context

        if not served.enabled:
            raise RuntimeError(_HOW)
        if context.get_context("mode") == context.PYNATIVE_MODE:
            raise RuntimeError(
                "Parameter server is not supported in PyNative mode: "
                "set_context(mode=GRAPH_MODE) comes before set_param_ps()"
            )
        lookup = served.lookups.get(id(self))
        if init_in_server and (lookup is None or lookup.sparse is False):
            raise UserError(
                f"set_param_ps(init_in_server=True) of '{self.name}': only the embedding_table of "
                "an nn.EmbeddingLookup(target='CPU') can be initialized on a server"
            )
        if init_in_server:
            engine.say_once(
                "init_in_server=True has no effect: rank 0 gives the servers the first values, and "
                "each worker holds a copy of the table"
            )
        if self.nbytes > _MOST_BYTES:
            raise UserError(
                f"parameter '{self.name}' has {self.nbytes} bytes: the size of a weight with "
                f"set_param_ps() must not exceed INT_MAX ({_MOST_BYTES}) bytes"
            )
        if str(self.dtype) != "Float32":
            raise UserError(
                f"parameter '{self.name}' is of type {self.dtype}: servers keep Float32"
            )
        served.ids[id(self)] = self
        if lookup is not None:
            # A sparse gradient's indices and values can not be given to an operator of ours: the
            # compiler of 2.10 crashes. So the lookup's gradient is dense.
            lookup.gatherv2, lookup.target = ops.Gather(), "DEVICE"

    def of_cell(self: Any, recurse: bool = True, init_in_server: bool = False) -> None:
        for parameter in self.trainable_params(recurse):
            parameter.set_param_ps(init_in_server)

    _watch_lookups(served)
    Parameter.set_param_ps, nn.Cell.set_param_ps = of_parameter, of_cell


def _watch_lookups(served: Served) -> None:
    kind = nn.EmbeddingLookup
    usual = kind.__init__

    @_as(usual)
    def init(self: Any, *given: Any, **named: Any) -> None:
        usual(self, *given, **named)
        served.lookups[id(self.embedding_table)] = self

    kind.__init__ = init


# ---- Optimizers ----------------------------------------------------------------------------------


def _number(value: Any) -> float:
    return float(value.asnumpy()) if hasattr(value, "asnumpy") else float(value)


def _refuse(optimizer: Any, what: str) -> None:
    raise UserError(
        f"nn.{type(optimizer).__name__} of parameters with set_param_ps() has no {what}"
    )


def _momentum(o: Any) -> _tables.Optimizer:
    return _tables.Optimizer(
        Rule.MOMENTUM, mindspore=True, nesterov=o.use_nesterov, momentum=_number(o.momentum)
    )


def _sgd(o: Any) -> _tables.Optimizer:
    if o.dampening:
        _refuse(o, "dampening")
    momentum = _number(o.momentum)
    if not momentum:
        return _tables.Optimizer(Rule.SGD)
    return _tables.Optimizer(Rule.MOMENTUM, nesterov=o.nesterov, momentum=momentum)


def _adam(o: Any) -> _tables.Optimizer:
    for name in ("use_nesterov", "use_amsgrad", "use_offload"):
        if getattr(o, name, False):
            _refuse(o, name)
    return _tables.Optimizer(
        Rule.ADAM,
        mindspore=True,
        beta1=_number(o.beta1),
        beta2=_number(o.beta2),
        epsilon=_number(o.eps),
    )


def _ftrl(o: Any) -> _tables.Optimizer:
    if o.lr_power != -0.5:
        _refuse(o, f"lr_power={o.lr_power}, only -0.5")
    first = float(o.moments[0].asnumpy().reshape(-1)[0])
    return _tables.Optimizer(Rule.FTRL, mindspore=True, l1=o.l1, l2=o.l2, initial_accumulator=first)


def _is_lazy(optimizer: Any) -> bool:
    """Return whether MindSpore updates only the rows of a table that have a gradient."""
    is_lazy_adam = isinstance(optimizer, nn.Adam) and optimizer.use_lazy
    return isinstance(optimizer, (nn.LazyAdam, nn.FTRL)) or is_lazy_adam


def _check_lazy(optimizer: Any, parameter: Any) -> None:
    if optimizer.exec_weight_decay:
        _refuse(optimizer, f"weight_decay for the table '{parameter.name}' of an EmbeddingLookup")
    if parameter.shape[-1] > MOST_VALUES:
        raise UserError(
            f"the table '{parameter.name}' has rows of {parameter.shape[-1]} values; servers keep "
            f"rows of up to {MOST_VALUES}"
        )


def _watch(served: Served, kind: Any, rule: Callable[[Any], _tables.Optimizer]) -> None:
    """Have optimizers of class `kind` leave the updates of served parameters to the servers."""
    usual = kind.__init__
    whole = type(kind.__name__, (kind,), {"construct": construct, "__module__": __name__})
    mixed = type(kind.__name__, (kind,), {"construct": construct_both, "__module__": __name__})

    @_as(usual)
    def init(self: Any, *given: Any, **named: Any) -> None:
        if type(self) is not kind or not (given or "params" in named):  # The program's own class.
            usual(self, *given, **named)
            return
        groups, *rest = given or (named.pop("params"),)
        groups = list(groups)
        listed = _listed(groups)
        mine = tuple(id(parameter) in served.ids for parameter in listed)
        if all(mine) or not any(mine):
            usual(self, groups, *rest, **named)
            if any(mine):
                self.serving = _operator(served, self, rule(self))
                self.__class__ = whole
            return
        remote = kind(_of(groups, served, True), *rest, **named)
        for parameter in remote.get_parameters():
            if id(parameter) not in served.ids:  # The other part has parameters of that name, too.
                parameter.name = f"ps.{parameter.name}"
        usual(self, _of(groups, served, False), *rest, **named)
        self.remote, self.mine = remote, mine
        self.__class__ = mixed
        self.parameters = ParameterTuple(listed)

    kind.__init__ = init


def _listed(groups: Sequence[Any]) -> list[Any]:
    """Return the parameters of an optimizer in the order in which it gets their gradients."""
    if not groups or not isinstance(groups[0], dict):
        return list(groups)
    for group in groups:
        if "order_params" in group:
            return list(group["order_params"])
    return [p for group in groups for p in group["params"]]


def _of(groups: Sequence[Any], served: Served, wanted: bool) -> list[Any]:
    """Return those parameters, or groups of them, that are served, or that are not."""
    if not isinstance(groups[0], dict):
        return [p for p in groups if (id(p) in served.ids) == wanted]
    found = []
    for group in groups:
        key = "order_params" if "order_params" in group else "params"
        if chosen := _of(group[key], served, wanted):
            found.append({**group, key: chosen})
    return found


def _operator(served: Served, optimizer: Any, rule: _tables.Optimizer) -> Any:
    """Make what takes learning rates, gradients and parameters, and gives the new values."""
    listed = list(optimizer.parameters)
    count = len(listed)
    rates = range(count) if optimizer.is_group_lr else [0] * count
    places: dict[tuple[int, bool, int], list[int]] = {}
    for i in range(count):
        rate = id(optimizer.group_lr[i]) if optimizer.is_group_lr else 0
        lazy = _is_lazy(optimizer) and id(listed[i]) in served.lookups
        if lazy:
            _check_lazy(optimizer, listed[i])
        places.setdefault((rate, lazy, i if lazy else 0), []).append(i)
    parts = [
        Part([listed[i] for i in at], rule, rates[at[0]], lazy)
        for (_, lazy, _), at in places.items()
    ]
    for part in parts:
        served.add(part)

    def update(*given: Any) -> Any:
        values = served.update(parts, list(places.values()), given, count)
        return tuple(values) if count > 1 else values[0]

    def shapes(*given: Any) -> Any:
        served.compiled = True
        return given[-count:] if count > 1 else given[-1]

    def types(*given: Any) -> Any:
        return given[-count:] if count > 1 else given[-1]

    # MindSpore counts an operator's inputs by this.
    names = (f"input{i}" for i in range(2 * count + (count if optimizer.is_group_lr else 1)))
    place = inspect.Parameter.POSITIONAL_ONLY
    update.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, place) for name in names]
    )
    _operators.in_one_order()
    made = ops.Custom(update, shapes, types, func_type="pyfunc")
    made.add_prim_attr("side_effect_io", True)
    return made


def construct(self, gradients):  # type: ignore[no-untyped-def]
    """Replace an optimizer's own, of which the servers do the last part."""
    gradients = self.decay_weight(gradients)
    gradients = self.gradients_centralization(gradients)
    gradients = self.scale_grad(gradients)
    lr = self.get_lr()
    self.assignadd(self.global_step, self.global_step_increase_tensor)
    if not self.is_group_lr:
        lr = (lr,)
    after = self.serving(*lr, *gradients, *self._parameters)
    if len(self._parameters) == 1:
        after = (after,)
    done: Any = ()
    for i in range(len(self._parameters)):
        done += (ops.assign(self._parameters[i], after[i]),)
    return done


def construct_both(self, gradients):  # type: ignore[no-untyped-def]
    """Replace an optimizer's own where the servers keep only some of its parameters."""
    kept: Any = ()
    given: Any = ()
    for i in range(len(self.mine)):
        if self.mine[i]:
            given += (gradients[i],)
        else:
            kept += (gradients[i],)
    return self.remote(given), super().construct(kept)  # type: ignore[misc]


def _watch_graphs(engine: Engine) -> None:
    """Begin a loop that nothing protects before the first graph that updates is run."""
    executor, served = either(COMPILERS)._JitExecutor, engine.served

    def watched(usual: Callable[..., Any]) -> Callable[..., Any]:
        @_as(usual)
        def compiled(self: Any, *given: Any, **named: Any) -> Any:
            result = usual(self, *given, **named)
            if served.compiled:
                served.compiled = False
                engine.begin_served()
            return result

        return compiled

    executor.compile, nn.Cell.compile = watched(executor.compile), watched(nn.Cell.compile)
