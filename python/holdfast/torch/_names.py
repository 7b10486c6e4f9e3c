"""The names by which a program's own `state_dict()` knows what an image holds.

An image lists them once, beside its table of tensors, for those who read it without the program:
`holdfast snapshot export`. A restored process does not need them.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import whole_shapes
from holdfast.torch._plan import Key
from holdfast.torch._private import compiled_from, own_buffers, own_parameters, transient_buffers

# Parts that wrappers add to names of parameters, and that state_dict() of the wrapped model lacks.
_OF_WRAPPERS: Final = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

# A name in state_dict(), and the key of what it stands for.
Names = list[tuple[str, Key]]


def names_of(kept: Kept) -> dict[str, Any]:
    """Return what the plan's keys do not say, as plain values.

    models: for each, the names in its state_dict(), in order, with the keys of what they name.
    Parameters that are tied have several names, and buffers that are not persistent have none.
    groups: for each optimizer, how many parameters each of its groups has.
    flat: the models that FullyShardedDataParallel has cut: no place says what a part is part of.
    """
    found = list(kept.walk(False))
    models = {}
    for name, model in kept.models.items():
        keys = {
            id(tensor): key
            for key, tensor in found
            if key[0] in ("model", "buffer") and key[1] == name
        }
        try:
            models[name] = _names_of_model(name, model, keys)
        except Exception:  # As if a module holds itself. That is no reason not to train.
            models[name] = [(key[2].lstrip("."), key) for key in keys.values()]
    groups = {
        name: [len(group["params"]) for group in optimizer.param_groups]
        for name, optimizer in kept.optimizers.items()
    }
    flat = [name for name, model in kept.models.items() if _is_flat(model)]
    return {"models": models, "groups": groups, "flat": flat}


def _names_of_model(name: str, model: torch.nn.Module, keys: dict[int, Key]) -> Names:
    outer, found = _unwrapped(model), Names()
    ways = {id(module): prefix for prefix, module in model.named_modules()}
    for prefix, module in outer.named_modules(remove_duplicate=False):
        for wrapper in _OF_WRAPPERS:
            prefix = f"{prefix}.".replace(wrapper, "")[:-1]
        begin = f"{prefix}." if prefix else ""
        own = [(key, p) for key, p in own_parameters(module).items() if p is not None]
        transient = transient_buffers(module)
        own += [(key, b) for key, b in own_buffers(module).items() if key not in transient]
        found += [(begin + key, keys[id(t)]) for key, t in own if id(t) in keys]
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            where = ways[id(module)]
            found.append((f"{begin}_extra_state", ("extra", f"{name}.{where}" if where else name)))
    return found


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that a plain program would make, without DDP or compile() around it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif (inner := compiled_from(model)) is not None:
            model = inner
        else:
            return model


def _is_flat(model: torch.nn.Module) -> bool:
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return bool(whole_shapes(model)) or (
        fsdp is not None and any(isinstance(module, fsdp) for module in model.modules())
    )
