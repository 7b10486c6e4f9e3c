"""Find out how much state an optimizer will have: a copy makes a step on scratch parameters."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

from holdfast._errors import UserError
from holdfast.torch._private import cut_parameters

SERVED: Final = "_holdfast_served"  # The attribute that names an optimizer's ParameterServer.


def local(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor; any other tensor as it is."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def like(value: Tensor, parameter: Any, distributed: bool) -> Tensor:
    """Return `value`; if `distributed`, a DTensor like `parameter` with this local part."""
    if not distributed:
        return value
    from torch.distributed.tensor import DTensor

    wrapped: Tensor = DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return wrapped


def whole_shapes(model: torch.nn.Module) -> dict[int, torch.Size]:
    """Return, by id, full sizes of parameters that FullyShardedDataParallel has cut into parts.

    With use_orig_params=True, such a parameter is flat and holds this rank's part, which may be
    empty on one rank and whole on another.
    """
    found: dict[int, torch.Size] = {}
    for module in model.modules():
        for parameter, shape in cut_parameters(module):
            found[id(parameter)] = torch.Size((shape.numel(),))
    return found


def largest_shape(tensor: Any, whole: Mapping[int, torch.Size]) -> torch.Size:
    """Return the shape of the largest local part of `tensor` on any rank; see whole_shapes()."""
    if id(tensor) in whole:
        return whole[id(tensor)]
    if not hasattr(tensor, "to_local"):
        return torch.Size(tensor.shape)
    shape = list(tensor.shape)
    for mesh_dim, placement in enumerate(tensor.placements):
        if placement.is_shard():
            ranks = tensor.device_mesh.size(mesh_dim)
            shape[placement.dim] = -(-shape[placement.dim] // ranks)
    return torch.Size(shape)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return an optimizer's parameters in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _state_after_a_step(
    optimizer: torch.optim.Optimizer,
    whole: Mapping[int, torch.Size],
    device: str,
    begun: bool = False,
) -> list[tuple[int, Any]]:
    """Return the state of a copy of an optimizer after a step with zero gradients.

    Each value comes with the id of the parameter that it belongs to; 0: it belongs to none.
    `begun`: the copy begins with what the optimizer has, which its step() does not make itself.
    """
    scratch = {}
    for p in parameters_of(optimizer):
        twin_of_p = torch.zeros(largest_shape(p, whole), dtype=p.dtype, device=device)
        twin_of_p.grad = torch.zeros_like(twin_of_p)
        scratch[id(p)] = twin_of_p.requires_grad_()
    groups = [
        {
            key: [scratch[id(p)] for p in value] if key == "params" else copy.deepcopy(value)
            for key, value in group.items()
        }
        for group in optimizer.param_groups
    ]
    if device == "meta" and type(optimizer).__module__.startswith("torch.optim."):
        for group in groups:  # The fused ways of torch's own keep no more, and refuse "meta".
            if "fused" in group:
                group["fused"] = False
    twin = type(optimizer).__new__(type(optimizer))
    state: defaultdict[Any, Any] = defaultdict(dict)
    for p, values in optimizer.state.items() if begun else ():
        shape, wide = local(p).shape, scratch[id(p)].shape
        for key, value in values.items():
            if isinstance(value, Tensor) and local(value).shape == shape:
                value = torch.zeros(wide, dtype=value.dtype, device=device)
            state[scratch[id(p)]][key] = copy.deepcopy(value)
    twin.__setstate__({"defaults": optimizer.defaults, "state": state, "param_groups": groups})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin.step()
    owners = {twin_of_p: p for p, twin_of_p in scratch.items()}
    return [(owners.get(key, 0), values) for key, values in twin.state.items()]


def _state_by_a_step(
    optimizer: torch.optim.Optimizer, whole: Mapping[int, torch.Size]
) -> list[tuple[int, Any]]:
    with suppress(Exception):  # Its step() may read values, which "meta" has not.
        return _state_after_a_step(optimizer, whole, "meta")  # No memory, no arithmetic.
    with suppress(KeyError):  # Its constructor may make state, as Adagrad's up to torch 2.6.
        return _state_after_a_step(optimizer, whole, "cpu")
    return _state_after_a_step(optimizer, whole, "cpu", begun=True)


def room_of_state(
    optimizer: torch.optim.Optimizer, whole: Mapping[int, torch.Size], common: Collection[int]
) -> tuple[int, int, int]:
    """Return upper bounds of an optimizer's state, the same on all ranks; and its tensors' number.

    First: bytes of the state of parameters whose ids are in `common`. Second: of all other state.
    """
    if SERVED in vars(optimizer):  # The servers have it.
        return 0, 0, 0
    name = type(optimizer).__name__
    try:
        state = _state_by_a_step(optimizer, whole)
    except Exception as error:
        raise UserError(
            f"{name} can not be kept: it needs a closure, or reads what it does not declare in "
            f"`state` and `param_groups` ({type(error).__name__}: {error}); use an optimizer that "
            "keeps all its state there"
        ) from error
    total = shared = tensors = 0
    for owner, values in state:
        if not owner:
            raise _hangs_at_none(optimizer)
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, Tensor):
                size = value.numel() * value.element_size() + 64
                total += size
                shared += size if owner in common else 0
                tensors += 1
            elif isinstance(value, (list, dict, set)):
                raise UserError(
                    f"{name} can not be kept: `{key}` of its state is a {type(value).__name__}, "
                    "whose size is not known beforehand"
                )
    return shared, total - shared, tensors


def _hangs_at_none(optimizer: torch.optim.Optimizer) -> UserError:
    return UserError(
        f"{type(optimizer).__name__} can not be kept: it has state that hangs at none of its "
        "parameters; put that at one, `self.state[parameter]`, or into a group of `param_groups`"
    )


def see_that_its_state_is_kept(optimizer: torch.optim.Optimizer) -> None:
    """Refuse state of an optimizer that belongs to no parameter."""
    if any(not isinstance(key, Tensor) for key in optimizer.state):
        raise _hangs_at_none(optimizer)


# Attributes of an optimizer that are kept, or that torch and its schedulers set.
_OF_TORCH: Final = ("state", "param_groups", "step", "_opt_called", "_step_count")


class Attributes:
    """Refuses an optimizer that changes attributes of its own in its first two steps.

    _state_after_a_step() has made a step without such attributes, and an image does not hold them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Mapping[str, Any]) -> None:
        """`kept`: objects of the program that State was given by name, which may change."""
        self._kept = kept
        self._left = 2
        self._before: list[dict[str, Any]] = []  # For each step() under way: one may call another.
        if type(optimizer).__module__.startswith("torch."):  # Those keep nothing there.
            return
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._left:
            self._before.append(self._values(optimizer))

    def _end(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._before:
            return
        now, before = self._values(optimizer), self._before.pop()
        self._left -= not self._before
        for name in now.keys() | before.keys():
            value, was = now.get(name, self), before.get(name, self)
            if value is was or (isinstance(value, (int, float, str)) and repr(value) == repr(was)):
                continue
            raise UserError(
                f"{type(optimizer).__name__} can not be kept: its step() changes its attribute "
                f"`{name}`, which a fault would lose; put that at a parameter, "
                "`self.state[parameter]`, or into a group of `param_groups`; or give State the "
                "object, if it has a state_dict(), by name"
            )

    def _values(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        kept = [id(thing) for thing in self._kept.values()]
        own = {k: v for k, v in vars(optimizer).items() if k not in _OF_TORCH and "hook" not in k}
        own |= {f"defaults[{key!r}]": value for key, value in optimizer.defaults.items()}
        return {key: value for key, value in own.items() if id(value) not in kept}


def holds_trained(thing: Any, outer: tuple[int, ...] = ()) -> bool:
    """Return whether `thing` is or holds a model or an optimizer. `outer`: ids of what holds it."""
    if id(thing) in outer:
        return False
    if isinstance(thing, (dict, list, tuple)):
        parts = thing.values() if isinstance(thing, dict) else thing
        return any(holds_trained(part, (*outer, id(thing))) for part in parts)
    return isinstance(thing, (torch.nn.Module, torch.optim.Optimizer))
