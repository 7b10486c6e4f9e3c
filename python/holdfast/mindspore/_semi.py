"""What semi-automatic parallel does where it is there, done as data parallel.

There the compiler puts the exchange of gradients, the sum over micro batches and the stages of a
pipeline into the graph. Without this they were missing without a word: ranks that drift apart, or
an optimizer that gets zeros.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.ops.composite import base

from holdfast._errors import UserError
from holdfast.mindspore import _broadcast, _operators
from holdfast.mindspore._engine import Phase
from holdfast.mindspore._imported import imported

if TYPE_CHECKING:
    from holdfast.mindspore._engine import Engine


class Exchange(nn.Cell):  # type: ignore[misc]
    """Gives gradients as they are until begin(), then their mean over all ranks."""

    def __init__(self, weights: Sequence[Any]) -> None:
        """`weights`: the parameters that the gradients are of."""
        super().__init__(auto_prefix=False)
        self.weights_of = list(weights)
        self.reducer: Any = nn.Identity()

    def begin(self, engine: Engine) -> None:
        """Exchange from now on; all ranks begin with rank 0's parameters."""
        reducer = nn.DistributedGradReducer(self.weights_of, True)
        if engine.phase not in (Phase.ECHO, Phase.LIVE):  # A successor would come alone.
            self._take_rank_0s(engine)
        self.reducer = reducer

    def _take_rank_0s(self, engine: Engine) -> None:
        number = engine.number("Broadcast", 0, "")
        operator = _operators.broadcast(engine.use(""), engine.world_size, 0, number)
        of_rank_0 = _broadcast.Broadcast(operator)(tuple(w.value() for w in self.weights_of))
        for weight, value in zip(self.weights_of, of_rank_0):
            ops.assign(weight, value)  # In place: an optimizer that has run would go on elsewhere.

    def __call__(self, grads: Any) -> Any:
        """Reduce outside of a graph, where one compiled before begin() would go on without."""
        return self.reducer(grads)

    def construct(self, grads):  # type: ignore[no-untyped-def]
        return self.reducer(grads)


# MindSpore's graph compiler reads the source of these: a program may call them in a graph.
def _of_list(usual: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
        return exchange(usual(*args, **kwargs))

    return exchanged


def _with_value(usual: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
        value, grads = usual(*args, **kwargs)
        return value, exchange(grads)

    return exchanged


def _with_rest(usual: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
        grads, rest = usual(*args, **kwargs)
        return exchange(grads), rest

    return exchanged


class Semi:
    """Whether a program asked for semi-automatic parallel, and where its gradients come from."""

    def __init__(self, engine: Engine) -> None:
        """Nothing was asked for yet."""
        self._engine = engine
        self.asked = False
        # By the identities of the weights, which each exchange keeps alive: a program may ask for
        # the gradients of the same in each step.
        self._begun: dict[tuple[int, ...], Exchange] = {}
        self._waiting: dict[tuple[int, ...], Exchange] = {}

    def ask(self, asked: bool) -> None:
        """Note what the program asks for now."""
        self.asked = asked
        if asked:
            waiting, self._waiting = self._waiting, {}
            for exchange in waiting.values():
                exchange.begin(self._engine)
            self._begun |= waiting
        else:
            self._begun = {}  # Until it is asked for again, ranks may drift apart.

    def exchanged(self, gradient: Any, usual: Callable[..., Any], weights: Any) -> Any:
        """Return what a program gets that asks for the gradients of weights."""
        alone = not gradient.get_all and not _flag(gradient, "get_by_position")
        if not (alone and isinstance(weights, (list, tuple))) or _flag(gradient, "return_ids"):
            if self.asked:
                raise UserError(
                    "in semi-automatic parallel, gradients are exchanged where they are of a list "
                    "of weights alone: use value_and_grad(function, None, weights)"
                )
            return usual
        exchange = self._exchange(weights)
        if _flag(gradient, "get_value"):
            return _with_value(usual, exchange)
        return (_with_rest if _flag(gradient, "has_aux") else _of_list)(usual, exchange)

    def _exchange(self, weights: Sequence[Any]) -> Exchange:
        key = tuple(map(id, weights))
        known = self._begun if self.asked else self._waiting  # AutoParallel(...) may come later.
        if key not in known:
            exchange = Exchange(weights)
            if self.asked:
                exchange.begin(self._engine)
            known[key] = exchange
        return known[key]


def _flag(gradient: Any, name: str) -> bool:
    return bool(getattr(gradient, name, False))  # GradOperation has not all that _Grad has.


def _of_mindspore(module: str) -> bool:
    return module.partition(".")[0] == "mindspore"


def _in_mindspores_cell() -> bool:
    """Return whether a cell of MindSpore's own asks, as what Model makes does in PyNative.

    Those have a reducer; a cell of the program's may have none.
    """
    frame = sys._getframe(2)
    return frame.f_code.co_name == "construct" and _of_mindspore(frame.f_globals["__name__"])


def _without_reducer(network: Any) -> str:
    """Return the class of the program's own that makes gradients in a graph without a reducer."""
    cells = [cell for _, cell in network.cells_and_names()]
    if any(isinstance(cell, nn.DistributedGradReducer) for cell in cells):
        return ""
    own = [cell for cell in cells if not _of_mindspore(type(cell).__module__)]
    kinds = (base._Grad, base.GradOperation)
    named = (
        type(c).__name__
        for c in own
        for v in vars(c).values()
        if isinstance(v, kinds) and v.get_by_list
    )
    return next(named, "")


def _context_module() -> Any:
    return imported("mindspore.parallel._auto_parallel_context")


def apply(engine: Engine, semi: Semi) -> None:
    """Put all in place."""
    if engine.world_size > 1:
        _gradients(semi)
        _graphs(engine, semi)
    _auto_parallel()
    _micro_batches()
    _slices(engine, semi)
    _parameter_server()
    # Only AutoParallel's own compiler would initialise the parameters that this leaves out: they
    # would be zeros.
    for name in ("mindspore.nn.utils", "mindspore.nn.utils.init"):
        imported(name).no_init_parameters = contextlib.nullcontext


def _gradients(semi: Semi) -> None:
    # value_and_grad, grad and GradOperation called outside of a graph come here (base.py:584);
    # inside of one, as in the cells that Model makes, the compiler takes them itself.
    for kind in (base._Grad, base.GradOperation):
        kind.__call__ = _asking(kind.__call__, semi)


def _asking(original: Callable[..., Any], semi: Semi) -> Callable[..., Any]:
    context = _context_module().auto_parallel_context()

    def call(self: Any, fn: Any, weights: Any = None, grad_position: Any = 0) -> Any:
        more = () if isinstance(self, base.GradOperation) else (grad_position,)
        usual = original(self, fn, weights, *more)
        by_hand = context.get_parallel_mode() == "data_parallel" and not semi.asked
        if by_hand or weights is None or _flag(self, "pynative_") or _in_mindspores_cell():
            return usual
        return semi.exchanged(self, usual, weights)

    return call


def _graphs(engine: Engine, semi: Semi) -> None:
    # What the compiler takes itself is not seen here, so it can not be exchanged here.
    usual, seen = nn.Cell.compile, weakref.WeakSet[Any]()

    def compiled(self: Any, *given: Any, **named: Any) -> Any:
        if semi.asked and self not in seen:
            seen.add(self)
            if name := _without_reducer(self):
                engine.say_once(
                    f"gradients that {name} makes within a graph are not exchanged "
                    "here, so the ranks drift apart: let its construct give them to an "
                    "nn.DistributedGradReducer(weights) before the optimizer"
                )
        return usual(self, *given, **named)

    nn.Cell.compile = compiled


def _auto_parallel() -> None:
    kind = imported("mindspore.parallel.auto_parallel").AutoParallel
    usual = kind.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        usual(self, *given, **named)
        _context_module()._set_auto_parallel_context(parallel_mode="semi_auto_parallel")

    kind.__init__ = init


def _micro_batches() -> None:
    # cell_wrapper.py:643 and grad_reducer.py:502 give the optimizer a sum that the compiler makes
    # of the micro batches' gradients: on the CPU nobody adds to it.
    amp, reducers = imported("mindspore.train.amp"), imported("mindspore.nn.wrap.grad_reducer")

    def whole(network: Any, optimizer: Any, sens: float | None = None) -> Any:
        sizes = [c.micro_size for _, c in network.cells_and_names() if hasattr(c, "micro_size")]
        return nn.TrainOneStepCell(network, optimizer, sens or 1 / (sizes or [1])[0])

    amp._TrainGradAccuStepCell = whole
    usual = reducers.PipelineGradReducer.__init__

    def init(self: Any, parameters: Any, scale_sense: float = 1.0, opt_shard: Any = None) -> None:
        usual(self, parameters, scale_sense, True)  # So it takes the gradients that it is given.

    reducers.PipelineGradReducer.__init__ = init


def _parameter_server() -> None:
    def refuse(self: Any, init_in_server: bool = False) -> None:
        raise UserError(
            "set_param_ps: the parameter server is gone from MindSpore 2.10, and Holdfast does not "
            "bring it back; remove that line and set_ps_context(enable_ps=True), and train data "
            "parallel"
        )

    nn.Cell.set_param_ps = refuse


def _slices(engine: Engine, semi: Semi) -> None:
    module, amp = (
        imported("mindspore.parallel._auto_parallel_context"),
        imported("mindspore.train.amp"),
    )
    context, kind = module.auto_parallel_context(), module._AutoParallelContext
    usual, usual_accumulates = kind.set_dataset_strategy, amp._is_grad_accumulation
    staged = [False]
    whole = _whole_batches(semi)

    def set_strategy(self: Any, strategy: Any) -> None:
        parts = strategy if isinstance(strategy, tuple) else ()
        if any(isinstance(p, tuple) and any(n != 1 for n in p[1:]) for p in parts):
            raise UserError(
                f"dataset_strategy={strategy} gives each rank a slice of every sample, which needs "
                "sharded operators; here each rank computes whole samples: leave it out, and the "
                "slicing of the samples"
            )
        whole[0] = strategy == "full_batch"
        usual(self, "data_parallel" if whole[0] else strategy)

    def set_stages(self: Any, stages: int) -> None:
        staged[0] = stages > 1
        if staged[0]:
            engine.say_once("pipeline_stages has no effect: every rank computes all stages")

    def accumulates(cell: Any) -> bool:
        return staged[0] or bool(usual_accumulates(cell))

    amp._is_grad_accumulation = accumulates
    kind.set_dataset_strategy, kind.set_pipeline_stages = set_strategy, set_stages
    for name in ("dataset_strategy", "pipeline_stages"):
        module._set_auto_parallel_context_func_map[name] = getattr(context, f"set_{name}")


def _whole_batches(semi: Semi) -> list[bool]:
    """Let full_batch be what it is for the mathematics, nothing: all ranks read the same samples.

    The compiler refuses it in data parallel (_utils.py:198), and gradients of PyNative would be
    divided by the ranks (base.py:152) and then their mean taken. Return where it is remembered.
    """
    module = imported("mindspore.parallel._auto_parallel_context")
    context, kind = module.auto_parallel_context(), module._AutoParallelContext
    usual_reset, usual_strategy = kind.reset, kind.get_dataset_strategy
    whole = [False]

    def set_whole(self: Any, wanted: bool) -> None:
        whole[0] = wanted

    def get_whole(self: Any) -> bool:
        return whole[0] and not semi.asked

    def get_strategy(self: Any) -> Any:
        return "full_batch" if whole[0] else usual_strategy(self)

    def reset(self: Any) -> None:
        whole[0] = False
        usual_reset(self)

    kind.set_full_batch, kind.get_full_batch, kind.reset = set_whole, get_whole, reset
    kind.get_dataset_strategy = get_strategy
    module._set_auto_parallel_context_func_map["full_batch"] = context.set_full_batch
    getters = module._get_auto_parallel_context_func_map
    getters["full_batch"] = lambda: whole[0]  # A program asks, to read all samples.
    getters["dataset_strategy"] = context.get_dataset_strategy
    return whole
