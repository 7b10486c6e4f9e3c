"""Read the image of a PyTorch rank, as holdfast.torch._image has written it."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from holdfast import _head
from holdfast._errors import UserError
from holdfast._snapshot_files import damaged
from holdfast.snapshots import _safe
from holdfast.snapshots._arena import Part
from holdfast.snapshots._safe import Place, plain
from holdfast.snapshots._safetensors import Raw

MAGIC: Final = b"HFTORCH1"


class TorchImage:
    """What State has kept on one rank after a step."""

    def __init__(self, part: Part, at: int) -> None:
        """`at`: where in the rank's private bytes the image's head is."""
        self.path: Path = part.path
        self._memory = part.private
        head = _head.read(part.private[at:], MAGIC)
        table = _safe.loads(head.table, f"{self.path}: its table of tensors")
        try:
            places, self._names = table
            self._places = {place.key: place for place in self._checked(places)}
            self._objects = self._dict(_safe.loads(head.objects, f"{self.path}: its objects"))
            self.step, position, *_ = self._objects["progress"]
            self.epoch = position[0]
            if type(self.step) is not int or type(self.epoch) is not int:
                raise ValueError
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            raise self._damaged() from None

    def _damaged(self) -> UserError:
        return damaged(self.path, "its image makes no sense; another release may have made it")

    def _dict(self, thing: Any) -> dict[Any, Any]:
        if type(thing) is not dict:
            raise ValueError
        return thing

    def _checked(self, places: Any) -> list[Place]:
        """Return the places if each is within the image, and none in another."""
        import torch

        found = []
        for key, dtype, shape, offset, distributed in places:
            is_right = (
                type(key) is tuple
                and isinstance(dtype, torch.dtype)
                and type(shape) is tuple
                and len(shape) <= 64
                and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
                and type(offset) is int
                and offset >= 0
            )
            if not is_right or any(type(part) not in (str, int) for part in key):
                raise ValueError
            if offset % dtype.itemsize:
                raise ValueError
            found.append(Place(key, dtype, shape, offset, bool(distributed)))
        end = 0
        for place in sorted(found, key=lambda place: (place.offset, _bytes_of(place))):
            if place.offset < end or place.offset + _bytes_of(place) > len(self._memory):
                raise ValueError
            end = place.offset + _bytes_of(place)
        return found

    def _tensor(self, key: Any) -> Any:
        """Return a tensor with a storage of its own, in the image's memory."""
        import torch

        place = self._places[key]
        size = _bytes_of(place)
        if not size:
            return torch.empty(place.shape, dtype=place.dtype)
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=place.offset)
        return flat.view(place.dtype).view(place.shape)

    @property
    def sharded(self) -> bool:
        """Whether this rank holds only a part of some model."""
        is_sharded = self._names["sharded"] or any(p.distributed for p in self._places.values())
        return bool(is_sharded)

    # ---- Models ----------------------------------------------------------------------------------

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the state_dict() of each model, under the name that State has for it."""
        try:
            return {
                str(name): self._state_dict(name, names)
                for name, names in self._dict(self._names["models"]).items()
            }
        except (TypeError, ValueError, KeyError):
            raise self._damaged() from None

    def _state_dict(self, model: Any, names: Any) -> dict[str, Any]:
        tensors: dict[Any, Any] = {}  # Tied parameters stay tied.
        found: dict[str, Any] = OrderedDict()
        for name, key in names:
            if type(name) is not str:
                raise ValueError
            if key[0] == "extra":
                what = f"get_extra_state() of {key[1]}"
                found[name] = plain(self._objects["extras"][what], f"{self.path}: {what}")
                continue
            if key in self._places:  # Else the buffer is None now.
                found[name] = tensors.setdefault(key, self._tensor(key))
        return found

    def raw(self) -> list[Raw]:
        """Return the models' tensors as bytes. With several models, names begin with a model's."""
        models = self.models()
        found = []
        for model, state in models.items():
            begin = f"{model}." if len(models) > 1 else ""
            keys = dict(self._names["models"][model])
            for name in state:
                if keys[name] in self._places:
                    found.append(self._raw(begin + name, self._places[keys[name]]))
        return found

    def _raw(self, name: str, place: Place) -> Raw:
        content = self._memory[place.offset : place.offset + _bytes_of(place)]
        return Raw(name, str(place.dtype).removeprefix("torch."), place.shape, content)

    def extras(self) -> list[str]:
        """Return the names in models' state_dict() that are no tensors."""
        names = [pair for model in self._names["models"].values() for pair in model]
        return [name for name, key in names if key[0] == "extra"]

    # ---- All else --------------------------------------------------------------------------------

    def everything(self, without: set[str]) -> dict[str, Any]:
        """Return all that State has kept, under its names. `without`: names to leave out."""
        try:
            return self._everything(without)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self._damaged() from None

    def _everything(self, without: set[str]) -> dict[str, Any]:
        objects = self._objects
        others = self._dict(objects["others"])
        kept = {key[1] for key in self._places if key[0] == "kept"}
        taken = {*others, *kept}
        found: dict[str, Any] = {}
        names = []

        def add(name: str, make: Any) -> None:
            names.append(name)
            if name not in without:
                found[name] = make()

        models = self.models()
        for name, model in models.items():
            add(_short(name, "model", "model", models, taken), lambda model=model: model)
        groups, kinds = self._dict(objects["groups"]), self._dict(objects["kinds"])
        for name in groups:
            kind = str(kinds[name]).lower()
            short = _short(name, kind, "optimizer", groups, taken)
            add(short, lambda name=name: self._optimizer(name))
        for name in sorted(kept):
            add(name, lambda name=name: self._tensor(("kept", name)))
        for name, value in others.items():
            if value is not None:  # Else it is a source of data, which has a position.
                add(name, lambda name=name, value=value: plain(value, self._where(name)))
        add("vars", self._vars)
        if unknown := without.difference(names):
            raise UserError(
                f"--without {min(unknown)}: State keeps nothing under this name; it keeps "
                f"{', '.join(names)}"
            )
        found["step"], found["epoch"] = self.step, self.epoch
        return found

    def _where(self, name: str) -> str:
        return f"{self.path}: `{name}`"

    def _optimizer(self, name: str) -> dict[str, Any]:
        """Return what load_state_dict() of the optimizer takes."""
        state: dict[int, dict[str, Any]] = {}
        for key in self._places:
            if key[:2] == ("state", name):
                state.setdefault(key[2], {})[key[3]] = self._tensor(key)
        for (of, i, key), value in self._dict(self._objects["loose"]).items():
            if of == name:
                state.setdefault(i, {})[key] = plain(value, self._where(name))
        groups, at = [], 0
        for group, size in zip(self._objects["groups"][name], self._names["groups"][name]):
            if type(size) is not int or not 0 <= size < 1 << 24:
                raise ValueError
            made = plain(group, self._where(name))
            groups.append({**made, "params": list(range(at, at + size))})
            at += size
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def _vars(self) -> Any:
        packed = self._objects["vars"]
        if not packed:
            return {}
        return plain(_safe.loads(packed, self._where("vars")), self._where("vars"))


def _bytes_of(place: Place) -> int:
    size: int = math.prod(place.shape) * place.dtype.itemsize
    return size


def _short(name: str, kind: str, short: str, all_: Any, taken: set[str]) -> str:
    """Return a name that State has made of a kind and a number without both, if it is the only one.

    `short`: what it is then.
    """
    is_made = re.fullmatch(rf"{re.escape(kind)}[0-9]+", name) is not None
    return short if is_made and len(all_) == 1 and short not in taken else name
