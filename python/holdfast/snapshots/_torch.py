"""Read the image of a PyTorch rank, as holdfast.torch._image has written it."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast import _head
from holdfast._errors import UserError
from holdfast._snapshot_files import damaged
from holdfast.snapshots import _safe
from holdfast.snapshots._arena import Part
from holdfast.snapshots._safe import Place, plain
from holdfast.snapshots._safetensors import Raw

_ALONE: Final = "--rank R exports the part of one rank, --rank all one file for each"

MAGIC: Final = b"HFTORCH2"


class Whole(NamedTuple):
    """A DTensor, as holdfast.torch._plan.Whole describes it."""

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    cuts: tuple[int | str, ...]


class TorchImage:
    """What State has kept on one rank after a step."""

    def __init__(self, part: Part, at: int) -> None:
        """`at`: where in the rank's private bytes the image's head is."""
        self.path: Path = part.path
        self._memory = part.private
        self._all: Sequence[TorchImage] = ()  # Of all ranks, if their parts are put together.
        try:
            head = _head.read(part.private[at:], MAGIC)
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from None
        table = _safe.loads(head.table, f"{self.path}: its table of tensors")
        try:
            places, self._names = table
            self._places = {place.key: place for place in self._checked(places)}
            self._flat = [str(name) for name in self._names["flat"]]
            self.made_by = self._dict(plain(self._names["made_by"], f"{self.path}: its makers"))
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
        for key, dtype, shape, offset, whole in places:
            is_right = (
                type(key) is tuple
                and isinstance(dtype, torch.dtype)
                and _is_shape(shape)
                and type(offset) is int
                and offset >= 0
            )
            if not is_right or any(type(part) not in (str, int) for part in key):
                raise ValueError
            if offset % dtype.itemsize:
                raise ValueError
            found.append(Place(key, dtype, shape, offset, _whole(whole)))
        end = 0
        for place in sorted(found, key=lambda place: (place.offset, _bytes_of(place))):
            if place.offset < end or place.offset + _bytes_of(place) > len(self._memory):
                raise ValueError
            end = place.offset + _bytes_of(place)
        return found

    def _tensor(self, key: Any) -> Any:
        """Return a tensor with a storage of its own, in the image's memory unless it is joined."""
        return _tensor_of(self._places[key].dtype, *self._content(key))

    def _part(self, key: Any) -> Any:
        """Return what this rank has of a tensor."""
        place = self._places[key]
        return _tensor_of(place.dtype, place.shape, self._bytes(place))

    def _bytes(self, place: Place) -> memoryview:
        return self._memory[place.offset : place.offset + _bytes_of(place)]

    def _content(self, key: Any) -> tuple[tuple[int, ...], memoryview]:
        """Return the shape and the bytes of a tensor; of the whole one, if parts are joined."""
        place = self._places[key]
        if self._all and place.whole is not None:
            return self._joined(key)
        return place.shape, self._bytes(place)

    # ---- Parts of tensors ------------------------------------------------------------------------

    @property
    def sharded(self) -> bool:
        """Whether this rank holds only a part of some model."""
        return bool(self._flat) or any(p.whole for p in self._places.values())

    def join(self, images: Sequence[TorchImage]) -> None:
        """Give whole tensors from here on. `images`: of all ranks, in their order.

        UserError: some parts are none that can be put together.
        """
        if self._flat:
            raise UserError(
                f"{self.path}: `{self._flat[0]}` was cut by FullyShardedDataParallel, which does "
                f"not say where a part belongs, so the parts are not put together: {_ALONE}"
            )
        self._all = images
        for key, place in self._places.items():
            if place.whole is not None:
                self._dimension(key, place.whole)

    def _dimension(self, key: Any, whole: Whole) -> int:
        """Return the dimension of a tensor along which its parts lie one after the other."""
        cut = whole.cuts[0]
        if len(whole.mesh) == 1 and type(cut) is int:
            return cut
        raise UserError(
            f"{self.path}: `{'.'.join(map(str, key[1:]))}` is placed {whole.cuts} on a mesh of "
            f"{' x '.join(map(str, whole.mesh))} ranks. Only what is cut along one dimension, over "
            f"a mesh of one, is put together: {_ALONE}"
        )

    def _joined(self, key: Any) -> tuple[tuple[int, ...], memoryview]:
        mine = self._places[key]
        whole, dim = mine.whole, self._dimension(key, mine.whole)
        parts = [image._part(key) for image in map(self._all.__getitem__, whole.ranks)]
        parts = [part for part in parts if part.numel()]
        rest = (*whole.shape[:dim], *whole.shape[dim + 1 :])
        is_right = (
            all(image._places[key].whole == whole for image in self._all)
            and all(part.dtype == mine.dtype for part in parts)
            and all((*part.shape[:dim], *part.shape[dim + 1 :]) == rest for part in parts)
            and (sum(part.shape[dim] for part in parts) == whole.shape[dim] or 0 in whole.shape)
        )
        if not is_right:
            raise ValueError
        content = bytearray(math.prod(whole.shape) * mine.dtype.itemsize)
        made, at = _tensor_of(mine.dtype, whole.shape, memoryview(content)), 0
        for part in parts:
            made.narrow(dim, at, part.shape[dim]).copy_(part)
            at += part.shape[dim]
        return whole.shape, memoryview(content)

    # ---- Models ----------------------------------------------------------------------------------

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
                if key not in tensors:
                    tensors[key] = self._tensor(key)
                found[name] = tensors[key]
        return found

    def raw(self) -> list[Raw]:
        """Return the models' tensors as bytes. With several models, names begin with a model's."""
        return list(self._made(lambda: list(self._raw())))

    def _raw(self) -> Iterator[Raw]:
        models = self._dict(self._names["models"])
        for model, names in models.items():
            begin = f"{model}." if len(models) > 1 else ""
            for name, key in names:
                if type(name) is not str:
                    raise ValueError
                if key in self._places:
                    dtype = str(self._places[key].dtype).removeprefix("torch.")
                    yield Raw(begin + name, dtype, *self._content(key))

    def extras(self) -> list[str]:
        """Return the names in models' state_dict() that are no tensors."""
        names = [pair for model in self._names["models"].values() for pair in model]
        return [name for name, key in names if key[0] == "extra"]

    # ---- All else --------------------------------------------------------------------------------

    def everything(self, without: set[str]) -> dict[str, Any]:
        """Return all that State has kept, under its names. `without`: names to leave out."""
        kept = self.kept()
        if unknown := without.difference(kept):
            raise UserError(
                f"--without {min(unknown)}: State keeps nothing under this name; it keeps "
                f"{', '.join(kept)}"
            )
        found = {name: make() for name, make in kept.items() if name not in without}
        return {**found, "step": self.step, "epoch": self.epoch}

    def kept(self) -> dict[str, Callable[[], Any]]:
        """Return, by the names under which State has kept something, functions that return it."""
        try:
            return {name: partial(self._made, make) for name, make in self._kept()}
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self._damaged() from None

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            raise self._damaged() from None

    def _kept(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        objects = self._objects
        others = self._dict(objects["others"])
        kept = {key[1] for key in self._places if key[0] == "kept"}
        taken = {*others, *kept}
        models = self._dict(self._names["models"])
        for name, names in models.items():
            short = _short(str(name), "model", "model", models, taken)
            yield short, partial(self._state_dict, name, names)
        groups, kinds = self._dict(objects["groups"]), self._dict(objects["kinds"])
        for name in groups:
            kind = str(kinds[name]).lower()
            short = _short(name, kind, "optimizer", groups, taken)
            yield short, partial(self._optimizer, name)
        for name in sorted(kept):
            yield name, partial(self._tensor, ("kept", name))
        for name, value in others.items():
            if value is not None:  # Else it is a source of data, which has a position.
                yield name, partial(plain, value, self._where(name))
        yield "vars", self._vars

    def rest(self) -> dict[str, Callable[[], Any]]:
        """Return, as kept() does, what a step depends on besides, and is not exported."""
        exported = ("groups", "loose", "others", "extras", "vars")
        found: dict[str, Callable[[], Any]] = {
            f"{name} (internal)": partial(plain, value, self._where(name))
            for name, value in self._objects.items()
            if name not in exported
        }
        named = {key for names in self._names["models"].values() for _, key in names}
        for key in self._places:
            if key[0] == "gradient" or (key[0] == "buffer" and key not in named):
                found[f"{key[0]} of {'.'.join(map(str, key[1:]))}"] = partial(self._tensor, key)
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


def _tensor_of(dtype: Any, shape: tuple[int, ...], content: memoryview) -> Any:
    import torch

    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(shape)


def _is_shape(shape: Any) -> bool:
    return (
        type(shape) is tuple
        and len(shape) <= 64
        and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
    )


def _whole(given: Any) -> Whole | None:
    """Return what a place says that it is a part of. ValueError: that makes no sense."""
    if given is None:
        return None
    whole = Whole(*given)
    is_right = (
        all(map(_is_shape, whole[:3]))
        and type(whole.cuts) is tuple
        and len(whole.cuts) == len(whole.mesh) > 0
        and len(whole.ranks) == math.prod(whole.mesh)
        and all(
            type(cut) is str or (type(cut) is int and 0 <= cut < len(whole.shape))
            for cut in whole.cuts
        )
    )
    if not is_right:
        raise ValueError
    return whole


def _bytes_of(place: Place) -> int:
    size: int = math.prod(place.shape) * place.dtype.itemsize
    return size


def _short(name: str, kind: str, short: str, all_: Any, taken: set[str]) -> str:
    """Return a name that State has made of a kind and a number without both, if it is the only one.

    `short`: what it is then.
    """
    is_made = re.fullmatch(rf"{re.escape(kind)}[0-9]+", name) is not None
    return short if is_made and len(all_) == 1 and short not in taken else name
