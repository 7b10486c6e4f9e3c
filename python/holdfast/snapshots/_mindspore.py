"""Read the image of a MindSpore rank, as holdfast.mindspore._image has written it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast import _head
from holdfast._errors import UserError
from holdfast._snapshot_files import damaged
from holdfast.snapshots import _safe
from holdfast.snapshots._arena import Part
from holdfast.snapshots._safe import plain
from holdfast.snapshots._safetensors import TYPES, Raw

MAGIC: Final = b"hfmsimg2"
_ALIGN: Final = 64
_OF_CALLBACKS: Final = "a callback's "  # holdfast.mindspore._image.OTHERS


class MindSporeImage:
    """The parameters of one rank, the optimizer's as well."""

    def __init__(self, part: Part, at: int) -> None:
        """`at`: where in the rank's private bytes the image is."""
        self.path: Path = part.path
        self._memory = part.private[at:]
        head = _head.read(self._memory, MAGIC)
        table = _safe.loads(head.table, f"{self.path}: its table of parameters")
        objects = self._objects = _safe.loads(head.objects, f"{self.path}: its objects")
        try:
            entries, made_by = table
            self.made_by = dict(plain(made_by, f"{self.path}: its makers"))
            self._rows = self._checked(entries, head.start)
            self.step, self.epoch = _progress(objects)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            raise damaged(
                self.path, "its image makes no sense; another release may have made it"
            ) from None

    def _checked(self, table: Any, at: int) -> list[Raw]:
        found = []
        for name, kind, shape in table:
            if type(name) is not str or type(shape) is not tuple:
                raise ValueError
            if any(type(size) is not int or not 0 <= size < 1 << 62 for size in shape):
                raise ValueError
            if kind not in TYPES:
                raise UserError(f"{self.path}: `{name}` is of type {kind}, which is not exported")
            at += -at % _ALIGN
            size = math.prod(shape) * TYPES[kind][1]
            if at + size > len(self._memory):
                raise ValueError
            if not name.startswith(_OF_CALLBACKS):
                found.append(Raw(name, kind, shape, self._memory[at : at + size]))
            at += size
        return found

    def raw(self) -> list[Raw]:
        """Return all parameters of the network and its optimizer as bytes."""
        return self._rows

    def kept(self) -> dict[str, Callable[[], Any]]:
        """Return, by the names of the parameters, functions that return them."""
        return {raw.name: partial(_same, raw) for raw in self._rows}

    def rest(self) -> dict[str, Callable[[], Any]]:
        """Return, as kept() does, what a step depends on besides."""
        where = f"{self.path}: its objects"
        return {f"{name} (internal)": partial(plain, v, where) for name, v in self._objects.items()}

    def write_checkpoint(self, path: Path) -> None:
        """Write what `mindspore.load_checkpoint` reads. Requires: mindspore."""
        import mindspore
        import numpy

        things = []
        for name, kind, shape, content in self._rows:
            if kind == "bfloat16":
                flat = numpy.frombuffer(content, numpy.uint16).astype(numpy.uint32) << 16
                data = mindspore.Tensor(flat.view(numpy.float32).reshape(shape), mindspore.bfloat16)
            else:
                data = mindspore.Tensor(numpy.frombuffer(content, kind).reshape(shape).copy())
            things.append({"name": name, "data": data})
        about = {"epoch_num": self.epoch, "step_num": self.step}
        mindspore.save_checkpoint(things, str(path), integrated_save=False, append_dict=about)


def _same(thing: Any) -> Any:
    return thing


def _progress(objects: Any) -> tuple[int, int]:
    """Return the number of steps done, and of the epoch, as MindSpore's checkpoints count it."""
    if "at" in objects:  # A loop of the program's own, kept by State.
        step, epoch = objects["at"][0], objects["at"][1]
    else:
        step, epoch = objects["step"], objects["epoch"] + 1
        step += (objects["gasp"] or {}).get("initial_step", 0)
    if type(step) is not int or type(epoch) is not int or step < 0:
        raise ValueError
    return step, epoch
