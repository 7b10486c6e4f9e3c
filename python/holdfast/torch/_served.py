"""ParameterServer: a model's parameters that the job's parameter servers keep and update.

Each group of the optimizer is a table. A row of it is a piece of a parameter. The parameters of a
worker are copies, which are renewed after each step in which the optimizer made one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from holdfast import _tables
from holdfast._abi import Status
from holdfast._errors import UserError
from holdfast._tables import Rule
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import SERVED, parameters_of
from holdfast.torch._plan import Key
from holdfast.torch._private import change_counts, has_scheduler, is_flat, patch_step
from holdfast.torch._tables import MOST_VALUES, engine_before_state

_NOT_THERE: Final = ("dampening", "maximize", "amsgrad", "lr_decay", "differentiable")


class ParameterServer:
    """Leaves the parameters of an optimizer to the job's parameter servers. Not thread-safe.

    docs/parameter-server.md says what is promised.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, name: str | None = None
    ) -> None:
        """Have the servers keep and update the parameters of `optimizer`, which are the model's.

        Make it after hf.init(), before hf.State(model, optimizer, ...) and before a scheduler, the
        same on all ranks. Rank 0's parameters are the first values. optimizer.step() then changes
        nothing itself. The servers make the update when the step ends, by the mean of all ranks'
        gradients. `optimizer`: SGD, Adam, AdamW or Adagrad of torch.optim. `name`: the tables' are
        `name`.1, `name`.2, ..., one for each group of the optimizer.

        Errors: UserError if the job has no servers, or they can not do what is asked.
        """
        self._engine = engine_before_state("hf.ParameterServer")
        self.name = name or f"parameters{len(self._engine.served) + 1}"
        self.model, self.optimizer = model, optimizer
        self._kind: Final = type(optimizer)
        self._names = {id(p): key for key, p in model.named_parameters()}
        self._keys: dict[int, Key] = {}  # By parameter id: how State calls it.
        self._open = False  # A step of the program is under way.
        self._due = False  # optimizer.step() was called in it.
        self._see_that_it_can_be()
        self._parts = [
            _Part(f"{self.name}.{i + 1}", group, self._rule(group))
            for i, group in enumerate(optimizer.param_groups)
        ]
        optimizer.state.clear()  # Adagrad has made some, which is the servers' now.
        vars(optimizer)[SERVED] = self
        optimizer.__class__ = _class_for(self._kind)
        patch_step(optimizer)
        hook = register_module_module_registration_hook(self._see_module)
        self._engine.at_end.append(hook.remove)
        self._engine.served.append(self)

    # ---- Checks ---------------------------------------------------------------------------------

    def _see_that_it_can_be(self) -> None:
        optimizer, listed = self.optimizer, parameters_of(self.optimizer)
        if self._kind not in _RULES:
            raise UserError(
                f"hf.ParameterServer: servers have no optimizer {self._kind.__name__}; they have "
                f"{', '.join(kind.__name__ for kind in _RULES)} of torch.optim"
            )
        if has_scheduler(optimizer):
            raise UserError(
                "hf.ParameterServer comes before the scheduler of its optimizer: make it first"
            )
        if _has_made_steps(optimizer):
            raise UserError(
                f"hf.ParameterServer: this {self._kind.__name__} has made steps, or has loaded "
                "some; the servers' begins anew. hf.load_tables(folder) goes on with saved ones"
            )
        if any(isinstance(m, DistributedDataParallel) for m in self.model.modules()):
            raise UserError(_NO_DDP)
        mine = {id(p) for p in listed}
        taken = {i for other in self._engine.served for i in other.ids()}
        for p in listed:
            self._see_that_it_can_be_served(p, taken)
        for key, p in self.model.named_parameters():
            if p.requires_grad and id(p) not in mine and id(p) not in taken:
                raise UserError(
                    f"hf.ParameterServer: parameter `{key}` of the model has gradients, and the "
                    "optimizer does not have it, so nobody would exchange them; give it to the "
                    "optimizer, or call requires_grad_(False)"
                )

    def _see_that_it_can_be_served(self, p: Tensor, taken: set[int]) -> None:
        if id(p) not in self._names:
            raise UserError(
                f"hf.ParameterServer: the {self._kind.__name__} has a parameter of shape "
                f"{list(p.shape)} that the model does not have"
            )
        what = f"hf.ParameterServer: parameter `{self._names[id(p)]}`"
        if id(p) in taken:
            raise UserError(f"{what} is in another hf.ParameterServer already")
        if hasattr(p, "to_local") or is_flat(p):
            raise UserError(f"{what} is spread over the ranks (FSDP); servers keep whole ones")
        if p.dtype is not torch.float32 or p.device.type != "cpu":
            raise UserError(
                f"{what} is {p.dtype} on {p.device}; servers keep torch.float32 parameters of the "
                "CPU"
            )

    def _rule(self, group: Mapping[str, Any]) -> _tables.Optimizer:
        for option in _NOT_THERE:
            if group.get(option):
                raise UserError(
                    f"hf.ParameterServer: servers have no {option}={group[option]!r} of "
                    f"{self._kind.__name__}"
                )
        return _RULES[self._kind](group)

    def _see_module(self, outer: Any, _: str, inner: Any) -> None:
        if isinstance(outer, DistributedDataParallel) and isinstance(inner, torch.nn.Module):
            mine = self.ids()
            if any(id(parameter) in mine for parameter in inner.parameters()):
                raise UserError(_NO_DDP)

    def see_that_it_is_kept(self, kept: Kept, ddps: Iterable[torch.nn.Module]) -> None:
        """Refuse a State without the model or the optimizer, or with the model in a DDP."""
        self._keys = {id(parameter): key for key, parameter in kept.parameters}
        known = any(self.optimizer is optimizer for optimizer in kept.optimizers.values())
        if not known or not self.ids() <= self._keys.keys():
            raise UserError(
                f"State was not given the model and the optimizer of hf.ParameterServer "
                f"`{self.name}`: State(model, optimizer)"
            )
        for ddp in ddps:
            if any(id(parameter) in self.ids() for parameter in ddp.parameters()):
                raise UserError(_NO_DDP)

    def ids(self) -> set[int]:
        """Return the ids of the parameters that the servers keep."""
        return {id(parameter) for part in self._parts for parameter in part.parameters}

    # ---- In a step ------------------------------------------------------------------------------

    def see_that_none_was_written(self, image: Callable[[], Mapping[Key, Tensor]]) -> None:
        """Raise UserError if a parameter is not as in the last version's image."""
        last: Mapping[Key, Tensor] = {}
        for part in self._parts:
            for parameter in part.changed():
                last = last or image()
                there = last[self._keys[id(parameter)]]
                if not torch.isclose(parameter.detach(), there, 0, 0, equal_nan=True).all():
                    raise self._was_written(parameter, "between two steps")

    def begin(self) -> None:
        """Begin a step of the program."""
        self._open, self._due = True, False
        for part in self._parts:
            part.note()

    def step(self) -> None:
        """Take the gradients as they are now, and the learning rates: optimizer.step() is this."""
        if not self._open:
            raise UserError(
                f"the optimizer of hf.ParameterServer `{self.name}` made a step outside of those "
                "of State, where the servers update nothing"
            )
        if self._due:
            raise UserError(
                f"the optimizer of hf.ParameterServer `{self.name}` made two steps in one step of "
                "State; the servers update once in a step"
            )
        for part in self._parts:
            if part.rule != self._rule(part.group):
                raise UserError(
                    f"an option of the optimizer of hf.ParameterServer `{self.name}` has changed; "
                    "only lr and weight_decay may change (a scheduler that changes the momentum "
                    "has cycle_momentum=False)"
                )
            for parameter in part.parameters:
                if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                    raise UserError(
                        f"parameter `{self._names[id(parameter)]}` has a sparse gradient, which "
                        "hf.ParameterServer does not take; use sparse=False, or hf.Embedding"
                    )
            part.take(self._engine.seat.world_size)
        self._due = True

    def push(self) -> int:
        """Push what the step has taken. Return the first status that is not good."""
        for part in self._parts if self._open else ():
            if changed := part.changed():
                raise self._was_written(changed[0], "in a step")
        for part in self._parts if self._due else ():
            if status := part.push():
                if status == Status.USER and (bad := part.not_finite()) is not None:
                    raise UserError(
                        f"rank {self._engine.seat.place.rank} has a gradient of parameter "
                        f"`{self._names[id(bad)]}` that is no finite number; state.check(loss) has "
                        "such a step made again or left out"
                    )
                return status
        return 0

    @property
    def pushed(self) -> bool:
        """Whether the step under way has pushed, so that the parameters are to be renewed."""
        return self._due

    def _was_written(self, parameter: Tensor, when: str) -> UserError:
        return UserError(
            f"parameter `{self._names[id(parameter)]}` was written {when}, and the servers keep "
            "it: what the program writes would be lost. Load a checkpoint before hf.State(...)"
        )

    # ---- For the engine and the versions --------------------------------------------------------

    def open(self, session: Any) -> None:
        """Define the tables in the session that State has opened."""
        for part in self._parts:
            part.open(session)

    def forget(self) -> None:
        """Forget a step that is over, or given up."""
        self._open = self._due = False

    def assign(self) -> int:
        """Have the tables begin with rank 0's parameters; return the status."""
        gives = self._engine.seat.place.rank == 0
        return next(filter(None, (part.assign(gives) for part in self._parts)), 0)

    def pull(self) -> int:
        """Renew all parameters; return the status. If it is not good, none has changed."""
        if status := next(filter(None, (part.pull() for part in self._parts)), 0):
            return status
        for part in self._parts:
            part.give()
        return 0


class _Part:
    """The parameters of one group of the optimizer: a table. Each begins a row of its own."""

    def __init__(self, name: str, group: dict[str, Any], rule: _tables.Optimizer) -> None:
        self.parameters: Final[list[Tensor]] = list(group["params"])
        self.group: Final = group
        self.rule: Final = rule
        sizes = [parameter.numel() for parameter in self.parameters]
        values = max(1, min(MOST_VALUES, max(sizes, default=1)))
        self._spec = _tables.Spec(name, values, rule)
        self._table: _tables.Table | None = None
        ends = torch.tensor([-(-size // values) for size in sizes]).cumsum(0).tolist()
        self._ranges = list(zip([0, *ends], ends))  # Of the rows of each parameter.
        self._keys = torch.arange(ends[-1] if ends else 0)
        self._rows = torch.zeros(self._keys.numel(), values)  # What is pushed, and what is pulled.
        self._given: list[int] = []  # The places of the parameters with a gradient.
        self._rates = (0.0, 0.0)
        self._seen = [-1 for _ in self.parameters]  # torch's counts of changes.

    def open(self, session: Any) -> None:
        self._table = _tables.Table(session, self._spec)

    def _of(self, i: int) -> Tensor:
        """Return the rows of a parameter as one tensor, with what pads the last."""
        begin, end = self._ranges[i]
        return self._rows[begin:end].view(-1)

    @torch.no_grad()
    def take(self, share: int) -> None:
        """Take all gradients, divided by `share`, and the rates."""
        self._given = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        for i in self._given:
            gradient = self.parameters[i].grad
            assert gradient is not None
            self._fill(i, gradient.detach() / share)
        self._rates = float(self.group["lr"]), float(self.group["weight_decay"])

    def _fill(self, i: int, values: Tensor) -> None:
        rows, size = self._of(i), values.numel()
        rows[:size] = values.reshape(-1)
        rows[size:] = 0

    def push(self) -> int:
        assert self._table is not None
        self._table.set(*self._rates)
        keys, rows = self._keys, self._rows
        if len(self._given) < len(self.parameters):  # Rows without a gradient stay as they are.
            keys = torch.cat([keys[:0], *(keys[slice(*self._ranges[i])] for i in self._given)])
            rows = rows[keys]
        return self._table.push(keys.data_ptr(), keys.numel(), rows.data_ptr())

    def not_finite(self) -> Tensor | None:
        """Return the first parameter of which take() took no finite number."""
        bad = (self.parameters[i] for i in self._given if not self._of(i).isfinite().all())
        return next(bad, None)

    @torch.no_grad()
    def assign(self, gives: bool) -> int:
        assert self._table is not None
        for i, parameter in enumerate(self.parameters):
            self._fill(i, parameter.detach())
        count = self._keys.numel() if gives else 0
        return self._table.assign(self._keys.data_ptr(), count, self._rows.data_ptr())

    def pull(self) -> int:
        assert self._table is not None
        keys, rows = self._keys, self._rows
        return self._table.pull(keys.data_ptr(), keys.numel(), rows.data_ptr())

    @torch.no_grad()
    def give(self) -> None:
        """Write what was pulled into the parameters."""
        for i, parameter in enumerate(self.parameters):
            parameter.copy_(self._of(i)[: parameter.numel()].view(parameter.shape))
        self.note()

    def note(self) -> None:
        """Note that the parameters are as they are to be."""
        self._seen = change_counts(self.parameters)

    def changed(self) -> list[Tensor]:
        """Return the parameters that were written since note()."""
        now = change_counts(self.parameters)
        return [p for p, n, seen in zip(self.parameters, now, self._seen) if n != seen]


# ---- Optimizers ----------------------------------------------------------------------------------


def _sgd(group: Mapping[str, Any]) -> _tables.Optimizer:
    if not group["momentum"]:
        return _tables.Optimizer(Rule.SGD)
    nesterov, momentum = bool(group["nesterov"]), float(group["momentum"])
    return _tables.Optimizer(Rule.MOMENTUM, nesterov=nesterov, momentum=momentum)


def _adam(group: Mapping[str, Any]) -> _tables.Optimizer:
    rule = Rule.ADAMW if group.get("decoupled_weight_decay") else Rule.ADAM
    beta1, beta2 = map(float, group["betas"])
    return _tables.Optimizer(rule, beta1=beta1, beta2=beta2, epsilon=float(group["eps"]))


def _adagrad(group: Mapping[str, Any]) -> _tables.Optimizer:
    return _tables.Optimizer(
        Rule.ADAGRAD,
        epsilon=float(group["eps"]),
        initial_accumulator=float(group["initial_accumulator_value"]),
    )


_RULES: Final[dict[type, Callable[[Mapping[str, Any]], _tables.Optimizer]]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.Adagrad: _adagrad,
}
_NO_DDP: Final = (
    "hf.ParameterServer exchanges the gradients of its parameters itself: do not wrap them in "
    "DistributedDataParallel"
)
_classes: dict[type, type] = {}


def _has_made_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has state of steps. Adagrad makes its state before the first."""
    found = [(key, value) for state in optimizer.state.values() for key, value in state.items()]
    is_adagrad = isinstance(optimizer, torch.optim.Adagrad)
    return any(key == "step" and value > 0 for key, value in found) if is_adagrad else bool(found)


def _class_for(kind: type) -> type:
    """Return a class of optimizers whose step() leaves the update to the servers."""
    if kind not in _classes:
        replaced = {"step": _step, "load_state_dict": _refuse_state, "__module__": __name__}
        replaced["add_param_group"] = _refuse_group
        _classes[kind] = type(kind.__name__, (kind,), replaced)
    return _classes[kind]


def _step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
    served = vars(self).get(SERVED)
    if served is None:
        raise UserError(
            f"this {type(self).__name__} is a copy of one whose parameters hf.ParameterServer left "
            "to the servers; the copy can make no steps"
        )
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    served.step()
    return loss


def _refuse_state(self: Any, _: Any) -> NoReturn:
    raise UserError(
        f"the servers have the state of this {type(self).__name__}: hf.save_tables(folder) and "
        "hf.load_tables(folder) save and load it, with the parameters"
    )


def _refuse_group(self: Any, _: Any) -> NoReturn:
    raise UserError("a group of parameters comes into the optimizer before hf.ParameterServer")


def assign_all(engine: Engine) -> None:
    """Give the servers first values, unless they begin with saved ones."""
    for served in engine.served if not engine.tables_from else ():
        if status := served.assign():
            engine.cut_short(status)
            return
