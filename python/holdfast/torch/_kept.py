"""The objects that a program gives to State, by name, sorted by how they are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor

from holdfast._errors import UserError
from holdfast._vars import Values, dumps, tensors_in
from holdfast.torch._copies import digests_of
from holdfast.torch._optimizers import (
    largest_shape,
    like,
    local,
    parameters_of,
    room_of_state,
    see_that_its_state_is_kept,
    whole_shapes,
)
from holdfast.torch._others import can_be_kept, contents_of, put_back
from holdfast.torch._plan import ALIGN, Key
from holdfast.torch._private import (
    change_counts,
    copy_each,
    has_scheduler,
    own_buffers,
    transient_buffers,
)
from holdfast.torch._trainers import Metric, is_metric, unwrapped


def _see_that_it_has_bytes(what: str, tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise UserError(f"{what} is on {tensor.device}; State keeps what lies in CPU memory")
    if tensor.layout is not torch.strided:
        raise UserError(f"{what} is {tensor.layout}; State keeps dense tensors: to_dense()")


def _storage_of(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


class Kept:
    """The user's objects by name, sorted by how they are kept."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.models: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.tensors: dict[str, Tensor] = {}
        self.others: dict[str, Any] = {}
        self.values = Values()  # The values of all state.vars(...).
        self.fed: set[str] = set()  # Names of `others` whose position steps() restores.
        self.room = 0  # Bytes by which `others` and `values` may grow, beyond the usual.
        self.parameters: list[tuple[Key, Tensor]] = []
        self._buffers: list[tuple[Key, torch.nn.Module, str]] = []
        self._groups: dict[str, int] = {}  # Number of parameter groups, by optimizer.
        self._extras: dict[str, torch.nn.Module] = {}  # Modules with get_extra_state().
        self._modules: dict[int, torch.nn.Module] = {}  # All, by id.
        self._storages: set[int] = set()  # Addresses of all that is kept.
        self._whole: dict[int, torch.Size] = {}  # By parameter id, if ranks hold parts.

    def add(self, name: str, thing: Any) -> None:
        """Begin to keep `thing` under a name. UserError: it can not be kept."""
        if name in {*self.models, *self.optimizers, *self.tensors, *self.others}:
            raise UserError(f"two things are kept under the name `{name}`; names must differ")
        if isinstance(thing, torch.nn.Module):
            self._add_model(name, thing)
        elif isinstance(thing, torch.optim.Optimizer):
            inner = getattr(thing, "optim", None)
            if isinstance(inner, torch.optim.Optimizer):
                raise UserError(
                    f"{type(thing).__name__} can not be kept: it makes its steps by another "
                    f"optimizer, {type(inner).__name__}, and exchanges parameters itself; use "
                    f"{type(inner).__name__} alone, with fully_shard() where each rank is to hold "
                    "a part only"
                )
            self.optimizers[name] = thing
            self._groups[name] = len(thing.param_groups)
        elif isinstance(thing, Tensor):
            _see_that_it_has_bytes(f"tensor `{name}`", thing)
            self.tensors[name] = thing
        elif can_be_kept(thing):
            self.others[name] = thing
        else:
            raise UserError(
                f"`{name}` is a {type(thing).__name__}, which can not be brought back to an "
                "earlier step; give it state_dict() and load_state_dict(), or keep plain values by "
                "state.vars(...)"
            )

    def name_of(self, thing: Any) -> str | None:
        """Return the name under which `thing` is kept, if it is in `others`."""
        return next((name for name, known in self.others.items() if known is thing), None)

    def has_a_parameter_of(self, module: torch.nn.Module) -> bool:
        """Return whether any parameter of a module is kept."""
        kept = {id(parameter) for _, parameter in self.parameters}
        return any(id(parameter) in kept for parameter in module.parameters())

    def _add_model(self, name: str, model: torch.nn.Module) -> None:
        self.models[name] = model
        self._whole.update(whole_shapes(model))
        for key, parameter in model.named_parameters():
            _see_that_it_has_bytes(f"parameter `{key}`", parameter)
            # Keep the object, since FSDP puts another one into the module during a step.
            self.parameters.append((("model", name, key), parameter))
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            self._modules.setdefault(id(module), module)
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
                where = f"{name}.{prefix}" if prefix else name
                self._extras[f"get_extra_state() of {where}"] = module
            if is_metric(module):
                self.others[f"{name}.{prefix}".strip(".")] = Metric(module)
            for key, buffer in own_buffers(module).items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    where = f"{prefix}.{key}" if prefix else key
                    _see_that_it_has_bytes(f"buffer `{where}`", buffer)
                    self._buffers.append((("buffer", name, f"{prefix}.{key}"), module, key))

    def see_that_it_is_whole(self) -> None:
        """Refuse optimizers whose parameters, or whose scheduler, are not kept."""
        kept = {id(tensor) for _, tensor in self.parameters} | set(map(id, self.tensors.values()))
        for name, optimizer in self.optimizers.items():
            if any(id(parameter) not in kept for parameter in parameters_of(optimizer)):
                raise UserError(
                    f"`{name}` updates parameters of no model that State was given; give State the "
                    "model too: State(model, optimizer)"
                )
            # torch marks the step() of an optimizer that a scheduler was made for.
            if has_scheduler(optimizer) and not any(
                unwrapped(getattr(part, "optimizer", None)) is optimizer
                for thing in self.others.values()
                for part in (thing, *getattr(thing, "__dict__", {}).values())
            ):
                raise UserError(
                    f"a scheduler changes the learning rates of `{name}`, and State was not given "
                    "it, so a fault would set it back: State(..., scheduler=scheduler)"
                )

    def see_that_an_optimizer_is_kept(self, optimizer: torch.optim.Optimizer) -> bool:
        """Refuse an optimizer that State lacks but that updates what is kept.

        False: it updates nothing that is kept.
        """
        if any(optimizer is known for known in self.optimizers.values()):
            return True
        parameters = {id(tensor) for _, tensor in self.parameters}
        if not any(id(parameter) in parameters for parameter in parameters_of(optimizer)):
            return False
        if any(optimizer.state is known.state for known in self.optimizers.values()):
            return True  # State was given a wrapper of this optimizer.
        for thing in self.others.values():  # A scheduler knows its optimizer but does not keep it.
            if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
                continue
            if any(part is optimizer for part in getattr(thing, "__dict__", {}).values()):
                return True
        raise UserError(
            f"{type(optimizer).__name__} updates parameters of a model that State keeps, but State "
            "was not given the optimizer, whose own state a fault would lose: "
            "State(model, optimizer)"
        )

    def see_that_buffers_are_kept(self) -> None:
        """Refuse buffers in a model's state_dict() that were added after State was made."""
        kept = {id(buffer) for _, buffer in self._buffers_now()}
        places = {(id(module), key) for _, module, key in self._buffers}
        for name, model in self.models.items():
            for prefix, module in model.named_modules():
                for key in sorted(own_buffers(module).keys() - transient_buffers(module)):
                    buffer = own_buffers(module)[key]
                    if buffer is None or id(buffer) in kept or (id(module), key) in places:
                        continue
                    raise UserError(
                        f"buffer `{prefix}.{key}` of `{name}` was made after State, which can not "
                        "keep it; make it, with its full size, before State"
                    )

    # ---- Tensors --------------------------------------------------------------------------------

    def walk(self, with_gradients: bool) -> Iterator[tuple[Key, Tensor]]:
        """Yield every tensor of the state. The order is the same while the tensors are the same."""
        yield from self.parameters
        yield from self._buffers_now()
        for name, tensor in self.tensors.items():
            yield ("kept", name), tensor
        for name, optimizer in self.optimizers.items():
            state = optimizer.state
            for i, parameter in enumerate(parameters_of(optimizer)):
                for key, value in (state.get(parameter) or {}).items():
                    if isinstance(value, Tensor):
                        yield ("state", name, i, key), value
        if with_gradients:
            for key, parameter in self.parameters:
                if parameter.grad is not None:
                    yield ("gradient", *key), parameter.grad

    def parameter_of(self, optimizer: str, i: int) -> Tensor:
        """Return the i-th parameter of an optimizer."""
        return parameters_of(self.optimizers[optimizer])[i]

    def _buffers_now(self) -> Iterator[tuple[Key, Tensor]]:
        for key, module, name in self._buffers:
            if name not in own_buffers(module):
                raise UserError(
                    f"buffer `{key[-1].lstrip('.')}` of `{key[1]}` was removed after State was "
                    "made, which a fault would bring back; set it to zeros instead, or remove it "
                    "before State"
                )
            buffer = own_buffers(module)[name]
            if buffer is not None:
                yield key, buffer

    def room_of_tensors(self, common: Collection[int] = ()) -> tuple[int, int, int]:
        """Return upper bounds of two sizes in bytes, the same on all ranks; and a count of tensors.

        First: parameters whose ids are in `common`, with their optimizer state. Second: all other
        tensors. An optimizer counts with all the state that it will have, since a successor may
        have loaded from a snapshot what its predecessor made in its first step.
        """

        def size(tensor: Tensor) -> int:
            return largest_shape(tensor, self._whole).numel() * tensor.element_size() + ALIGN

        shared = sum(size(p) for _, p in self.parameters if id(p) in common)
        fixed = sum(2 * size(p) for _, p in self.parameters) - shared  # With gradients.
        buffers = [buffer for _, buffer in self._buffers_now()]
        fixed += sum(size(t) for t in (*self.tensors.values(), *buffers))
        count = sum(1 for key, _ in self.walk(False) if key[0] != "state")
        for optimizer in self.optimizers.values():
            more = room_of_state(optimizer, self._whole, common)
            shared, fixed, count = shared + more[0], fixed + more[1], count + more[2]
        return shared, fixed, count

    def shapes(self) -> bytes:
        """Return a digest of names, types and shapes, which must be equal on all ranks."""
        digest = hashlib.blake2b(digest_size=16)
        for key, parameter in self.parameters:
            shape = tuple(self._whole.get(id(parameter), parameter.shape))
            digest.update(f"{key[1:]}{parameter.dtype}{shape}\n".encode())
        for name, optimizer in self.optimizers.items():
            digest.update(f"{name}{type(optimizer).__name__}\n".encode())
        return digest.digest()

    def see_that_nothing_is_shared(self, name: str, value: Any) -> None:
        """Refuse a value of state.vars() that shares memory with State, as in a state_dict()."""
        if not self._storages:
            self._storages = {_storage_of(tensor) for _, tensor in self.walk(False)}
        for place in self._storages.intersection(map(_storage_of, tensors_in(value))):
            for key, known in self.walk(False):  # The tensor may have moved.
                if place and _storage_of(known) == place:
                    raise UserError(
                        f"`{name}` can not be kept by state.vars(...): it shares its memory with "
                        f"`{key[-1]}`, which the training changes; keep a copy, by clone()"
                    )

    # ---- All else -------------------------------------------------------------------------------

    def objects(self) -> dict[str, Any]:
        """Return all of the state that is no tensor, to be pickled."""
        for name, optimizer in self.optimizers.items():
            see_that_its_state_is_kept(optimizer)
            if len(optimizer.param_groups) != self._groups[name]:
                raise UserError(
                    f"a group of parameters was added to `{name}` after State was made, which can "
                    "not be kept; add it before, with a learning rate of 0 until it is to be used"
                )
        groups = {
            name: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            for name, o in self.optimizers.items()
        }
        loose = {
            (name, i, key): value
            for name, o in self.optimizers.items()
            for i, parameter in enumerate(parameters_of(o))
            for key, value in (o.state.get(parameter) or {}).items()
            if not isinstance(value, Tensor)
        }
        others = {
            name: None if name in self.fed else contents_of(thing)
            for name, thing in self.others.items()
        }
        kinds = {name: type(o).__name__ for name, o in self.optimizers.items()}
        return {
            "groups": groups,
            "loose": loose,
            "others": others,
            "kinds": kinds,
            "extras": {name: module.get_extra_state() for name, module in self._extras.items()},
            # A successor does not come again to the line that unfreezes parameters in some epoch.
            "requires_grad": [parameter.requires_grad for _, parameter in self.parameters],
            "training": [module.training for module in self._modules.values()],
            "vars": self.values.packed(),
        }

    def digests(self) -> dict[str, bytes]:
        """Return a digest for each kept name except tensors, to see what has changed."""
        objects = self.objects()
        parts = {
            **objects["groups"],
            **objects["others"],
            "requires_grad": objects["requires_grad"],
            **self.values.all,
        }
        return {name: hashlib.blake2b(dumps(part)).digest() for name, part in parts.items()}

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for key, tensor in self.walk(False):
            yield ".".join(map(str, key[1:])), tensor

    def marks(self) -> dict[str, Any]:
        """Return, for each kept name, what differs after a change: for tensors, change counts."""
        found = {name: t for name, t in self._named() if not t.is_inference()}
        return {**self.digests(), **dict(zip(found, change_counts(found.values())))}

    def fingerprints(self) -> dict[str, Any]:
        """Return a digest for each kept name, tensors included, to see what has changed."""
        found = dict(self._named())
        digests = digests_of([local(tensor) for tensor in found.values()])
        return {**self.digests(), **dict(zip(found, digests))}

    def restore(
        self,
        tensors: Mapping[Key, Tensor],
        distributed: Set[Key],
        objects: dict[str, Any],
        with_gradients: bool = True,
    ) -> None:
        """Bring everything to what an image holds. `distributed`: keys of parts of DTensors."""
        known = dict(self.parameters)
        known.update(self._buffers_now())
        known.update((("kept", name), tensor) for name, tensor in self.tensors.items())
        _compare(known, tensors)
        self._compare_others(objects)
        targets, sources = [], []
        gradients: dict[Key, Tensor] = {}
        state: dict[tuple[str, int], dict[str, Any]] = {}
        for key, value in tensors.items():
            if key[0] == "gradient":
                gradients[key[1:]] = like(value.clone(), known[key[1:]], key in distributed)
            elif key[0] == "state":
                made = (value, key in distributed)
                state.setdefault((key[1], key[2]), {})[key[3]] = made
            elif value.numel():
                targets.append(local(known[key]).detach())
                sources.append(value)
        if targets:
            copy_each(targets, sources)
        for key, parameter in self.parameters if with_gradients else ():
            parameter.grad = gradients.get(key)
        for (name, i, key), value in objects["loose"].items():
            state.setdefault((name, i), {})[key] = value
        for name, optimizer in self.optimizers.items():
            _restore_optimizer(optimizer, name, state, objects["groups"][name])
        self._put_back_all(objects)

    def undo_of_an_evaluation(self) -> Callable[[], None]:
        """Return a function that sets buffers and modes of modules back to what they are now."""
        buffers = [(buffer, buffer.clone()) for _, buffer in self._buffers_now()]
        # A forward pass without gradients changes whether DDP shares its buffers in the next one.
        names = ("training", "require_forward_param_sync")
        modes = [(m, n, vars(m)[n]) for m in self._modules.values() for n in names if n in vars(m)]

        @torch.no_grad()
        def undo() -> None:
            for buffer, was in buffers:
                buffer.copy_(was)
            for module, name, mode in modes:
                setattr(module, name, mode)

        return undo

    def _put_back_all(self, objects: Any) -> None:
        for name, thing in self.others.items():
            if name not in self.fed and objects["others"][name] is not None:
                put_back(thing, objects["others"][name])
        self.values.put_back(objects["vars"])
        for name, module in self._extras.items():
            module.set_extra_state(objects["extras"][name])
        for (_, parameter), trained in zip(self.parameters, objects["requires_grad"]):
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, training in zip(self._modules.values(), objects["training"]):
            if module.training != training:
                module.training = training

    def _compare_others(self, objects: dict[str, Any]) -> None:
        kinds = {name: type(o).__name__ for name, o in self.optimizers.items()}
        for name in {**kinds, **objects["kinds"]}:
            now, was = kinds.get(name, "missing"), objects["kinds"].get(name, "missing")
            if now != was:
                raise _changed(name, now, was)
        for mine, theirs in ((self.others, objects["others"]), (self._extras, objects["extras"])):
            for name in {**mine, **theirs}:
                if (name in mine) != (name in theirs):
                    now, was = ("kept", "missing") if name in mine else ("missing", "kept")
                    raise _changed(name, now, was)


def _compare(known: Mapping[Key, Tensor], tensors: Mapping[Key, Tensor]) -> None:
    there = {key: t for key, t in tensors.items() if key[0] not in ("state", "gradient")}
    mine = {key: local(tensor) for key, tensor in known.items()}
    for key in {**mine, **there}:
        now, was = (
            f"{t[key].dtype} {list(t[key].shape)}" if key in t else "missing" for t in (mine, there)
        )
        if now != was:
            raise _changed(key[-1], now, was)


def _changed(name: str, now: str, was: str) -> UserError:
    return UserError(
        f"the program has changed between restarts: `{name}` is {now}, in the state it is {was}; "
        "a job goes on with the program it was started with, or is started anew"
    )


def _restore_optimizer(
    optimizer: torch.optim.Optimizer,
    name: str,
    state: dict[tuple[str, int], dict[str, Any]],
    groups: list[dict[str, Any]],
) -> None:
    for i, parameter in enumerate(parameters_of(optimizer)):
        wanted = state.get((name, i))
        if wanted is None:
            optimizer.state.pop(parameter, None)
            continue
        mine = optimizer.state[parameter]
        for key in [k for k in mine if k not in wanted]:
            del mine[key]
        for key, value in wanted.items():
            if not isinstance(value, tuple) or not isinstance(value[0], Tensor):
                mine[key] = value
                continue
            content, distributed = value
            old = mine.get(key)
            if isinstance(old, Tensor) and local(old).shape == content.shape:
                local(old).copy_(content)
            else:
                mine[key] = like(content.clone(), parameter, distributed)
    for group, saved in zip(optimizer.param_groups, groups):
        group.update(saved)
