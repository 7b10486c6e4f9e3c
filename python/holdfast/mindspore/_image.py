"""Write all that a step depends on, parameters and objects, as one flat image; read it back.

Layout: a head, then the parameters' bytes, each at a multiple of 64.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import pickle
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np

from holdfast import _head
from holdfast._errors import UserError
from holdfast._head import Head
from holdfast._makers import Makers, makers

_MAGIC: Final = b"hfmsimg2"
_ALIGN: Final = 64
OTHERS: Final = "a callback's "  # Prefix of the names of parameters that callbacks hold.
# By these names MindSpore's optimizers clone their parameters. Not `accum`: programs call sums of
# gradients so, which differ between ranks.
_MOMENTS: Final = (
    *("moments", "moment1", "moment2", "vhat", "adam_m", "adam_v", "lamb_m", "lamb_v"),
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "mean_grad", "mean_square"),
    "momentum_buf",
)
_ROOM: Final = 2 << 20  # Bytes by which table and objects may grow.

Array = Any  # numpy.ndarray of any type.
See = Callable[[Sequence[str], Sequence[Array], dict[str, Any]], None]
Changes = dict[int, Array]  # Bytes of parameters, by their places in the image.

compare: Final = c.CDLL(None).memcmp  # 0: equal.
compare.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t]


def memory(parameter: Any) -> Array:
    """Return the memory of a parameter in which graphs compute; never a copy."""
    return parameter.asnumpy()


class Image:
    """Writes and reads the images of one network."""

    def __init__(
        self,
        parameters: Sequence[Any],
        objects: dict[str, Any],
        others: Sequence[Any] = (),
        room: int = 0,
    ) -> None:
        """Measure the image. `objects`: what the first image will hold besides parameters.

        `others`: parameters that are not the network's. `room`: bytes for objects, beyond the
        usual.
        """
        self._parameters = [*parameters, *others]
        self._names = [p.name for p in parameters] + [OTHERS + p.name for p in others]
        arrays = [memory(p) for p in self._parameters]
        entries = self._entries(arrays)
        self._table = pickle.dumps((entries, makers()))
        described = pickle.dumps(entries)  # What is where does not depend on the makers.
        self._start = _head.BYTES + len(described) + _ROOM + room
        self._start += 4 * len(pickle.dumps(objects))
        self._sizes = [a.nbytes for a in arrays]
        self._offsets = _offsets(self._start, self._sizes)
        end = self._offsets[-1] + arrays[-1].nbytes
        self.bytes = end + -end % 4096
        self.used: tuple[tuple[int, int], ...] = ()  # Ranges of the image that was written last.
        self.digest = hashlib.sha256(described).digest()[:16]

    def _entries(self, arrays: Sequence[Array]) -> list[Any]:
        return [(name, str(a.dtype), a.shape) for name, a in zip(self._names, arrays)]

    def _views(self, view: memoryview, arrays: Sequence[Array]) -> list[Array]:
        flat = np.frombuffer(view, dtype=np.uint8)
        return [flat[at : at + a.nbytes] for at, a in zip(self._offsets, arrays)]

    def write(self, view: memoryview, objects: dict[str, Any], see: See = lambda *_: None) -> None:
        """Fill an image. `see` is shown names and arrays of the parameters, and the objects."""
        arrays = [memory(p) for p in self._parameters]
        see(self._names, arrays, objects)
        packed = pickle.dumps(objects, pickle.HIGHEST_PROTOCOL)
        head = Head(self._table, packed, self._start)
        if head.size > self._start:
            raise UserError(
                f"what callbacks and the outputs of a step hold has grown to {len(packed)} bytes, "
                f"more than the room for it ({self._start - len(self._table)}); keep large things "
                "out of the attributes of callbacks"
            )
        head.write(view, _MAGIC)
        for target, array in zip(self._views(view, arrays), arrays):
            target[:] = _bytes(array)
        self.used = (0, head.size), (self._start, self.bytes - self._start)

    def changes(self, view: memoryview) -> Changes:
        """Return copies of the parameters that differ from an image."""
        arrays = [_bytes(memory(p)) for p in self._parameters]
        pairs = enumerate(zip(self._views(view, arrays), arrays))
        return {
            i: mine.copy()
            for i, (there, mine) in pairs
            if compare(there.ctypes.data, mine.ctypes.data, mine.nbytes)
        }

    def are_as(self, changes: Changes, which: Collection[int], view: memoryview) -> bool:
        """Whether an image has these parameters as the changes have them, if they do."""
        views = self._views(view, [memory(p) for p in self._parameters])
        return all(bool((views[i] == changes[i]).all()) for i in which if i in changes)

    def alike(self, given: Collection[int]) -> bytes:
        """Return one byte for each parameter; 1: it is one of the `given` ids, or a moment of one.

        An optimizer names its moments by a prefix of its own and their parameter's name.
        """
        names = {p.name for p in self._parameters if id(p) in given}
        moments = {f"{prefix}.{name}" for prefix in _MOMENTS for name in names}
        rows = zip(self._parameters, self._names)
        return bytes(id(p) in given or name in moments for p, name in rows)

    def places(self, which: bytes) -> list[tuple[str, int, int]]:
        """Return names, offsets and sizes of the parameters with a 1."""
        rows = zip(self._names, self._offsets, self._sizes, which)
        return [(name, at, size) for name, at, size, is_in in rows if is_in]

    def take(self, which: Collection[int], view: memoryview) -> None:
        """Set parameters, by their numbers, to their values in an image."""
        arrays = [memory(p) for p in self._parameters]
        views = self._views(view, arrays)
        for i in which:
            _bytes(arrays[i])[:] = views[i]

    def flip(self, which: int, byte: int, bit: int) -> None:
        """Flip a bit of a parameter, by its number."""
        changed = _bytes(memory(self._parameters[which])).copy()
        changed[byte] ^= 1 << bit
        self.put({which: changed})

    def show(self, see: Callable[[Sequence[str], Sequence[Array]], None]) -> None:
        """Show names and arrays of the parameters as they are."""
        see(self._names, [memory(p) for p in self._parameters])

    def put(self, changes: Changes) -> None:
        """Set parameters to the values from changes()."""
        for i, value in changes.items():
            _bytes(memory(self._parameters[i]))[:] = value

    def read(self, view: memoryview, see: Callable[[Makers], None]) -> dict[str, Any]:
        """Set the parameters to the values in an image; return its objects.

        `see` is shown first what has made the image.
        """
        see(pickle.loads(_head.read(view, _MAGIC).table)[1])
        table, objects, _ = parse(view)
        arrays = [memory(p) for p in self._parameters]
        _compare(self._entries(arrays), table)
        for source, array in zip(self._views(view, arrays), arrays):
            _bytes(array)[:] = source
        return objects


def _bytes(array: Array) -> Array:
    """Return the memory of an array as bytes; never a copy."""
    if not array.flags.c_contiguous:
        raise UserError("a parameter's memory is not contiguous; this MindSpore is not supported")
    return array.reshape(-1).view(np.uint8)


def _compare(mine: list[Any], there: list[Any]) -> None:
    for i in range(max(len(mine), len(there))):
        now = mine[i] if i < len(mine) else None
        was = there[i] if i < len(there) else None
        if now != was:
            name = (now or was or ["?"])[0]
            raise UserError(
                f"the network has changed between restarts: parameter '{name}' is "
                f"{now and now[1:]}, in the state it is {was and was[1:]}; a job goes on with the "
                "program it was started with"
            )


def _offsets(at: int, sizes: Sequence[int]) -> list[int]:
    found = []
    for size in sizes:
        at += -at % _ALIGN
        found.append(at)
        at += size
    return found


def parse(view: memoryview) -> tuple[list[Any], dict[str, Any], int]:
    """Return the table of parameters (name, type, shape), the objects, the parameters' offset."""
    head = _head.read(view, _MAGIC)
    return pickle.loads(head.table)[0], pickle.loads(head.objects), head.start


def contents(view: memoryview) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return copies of the network's parameters by their names, and the objects."""
    table, objects, start = parse(view)
    flat = np.frombuffer(view, dtype=np.uint8)
    sizes = [np.dtype(kind).itemsize * int(np.prod(shape)) for _, kind, shape in table]
    found = {}
    for (name, kind, shape), at, size in zip(table, _offsets(start, sizes), sizes):
        if name.startswith(OTHERS):
            continue
        found[name] = flat[at : at + size].copy().view(kind).reshape(shape)
    return found, objects
