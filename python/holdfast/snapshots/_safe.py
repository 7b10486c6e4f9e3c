"""Unpickle what a snapshot holds, without running anything that it names.

Plain values, tensors and arrays are made again by code of this module, with all sizes checked. In
place of anything else stands a Stranger, which does nothing, and which plain() refuses by name.
"""

from __future__ import annotations

import collections
import datetime
import io
import math
import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple

from holdfast._errors import UserError

_Usual: Final[Any] = pickle._Unpickler  # It is written in Python.
_DEEPEST: Final = 64
_MOST: Final = 10_000_000  # Values.
_NO_CODE: Final = (
    "which is not read from a snapshot, since that could run code. Plain values, tensors and "
    "arrays are"
)


class Place(NamedTuple):
    """Stands for holdfast.torch._plan.Place."""

    key: Any
    dtype: Any
    shape: Any
    offset: Any
    whole: Any


class Stranger:
    """Stands for an object that is not made again."""

    def __init__(self, name: str) -> None:
        """`name`: of what would have made it."""
        self.name = name

    def append(self, _: Any) -> None:
        """Do nothing, as for the parts of a list."""

    def extend(self, _: Any) -> None:
        """Do nothing."""

    def add(self, _: Any) -> None:
        """Do nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing."""


class _Maker:
    """Something that a pickle calls. It is no callable: _Safe alone calls `make`."""

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self.make = name, make


# ---- What is made --------------------------------------------------------------------------------


def _of_list(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a maker of a collection from a list or dict alone: a range could be endless."""

    def make(parts: Any = (), *rest: Any) -> Any:
        if type(parts) not in (list, tuple, dict, set) or rest not in ((), (None,)):
            raise ValueError
        return kind(parts)

    return make


def _defaultdict(factory: Any = None, *_: Any) -> Any:
    """Make a dict. What makes its missing values is not needed any more."""
    return {}


def _deque(parts: Any = (), longest: Any = None) -> Any:
    if type(parts) not in (list, tuple) or type(longest) not in (int, type(None)):
        raise ValueError
    return collections.deque(parts, longest)


def _bytearray(content: Any = b"") -> bytearray:
    if type(content) is not bytes:
        raise ValueError
    return bytearray(content)


def _date(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(*given: Any) -> Any:
        if not all(
            type(one) in (int, bytes, datetime.timedelta, datetime.timezone, type(None))
            for one in given
        ):
            raise ValueError
        return kind(*given)

    return make


# ---- Tensors -------------------------------------------------------------------------------------


def _torch() -> Any:
    import torch

    return torch


def dtype_of(name: Any) -> Any:
    """Return a dtype of torch by its name. ValueError: it is none."""
    found = getattr(_torch(), name, None) if type(name) is str else None
    if not isinstance(found, _torch().dtype):
        raise ValueError
    return found


def _sizes(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)) or len(shape) > 64:
        raise ValueError
    if any(type(size) is not int or not 0 <= size < 1 << 62 for size in shape):
        raise ValueError
    return tuple(shape)


def _by_value(dtype: Any, shape: Any, raw: Any) -> Any:
    """Stands for holdfast._vars._tensor."""
    torch = _torch()
    if not isinstance(dtype, torch.dtype) or type(raw) is not bytes:
        raise ValueError
    if len(raw) != math.prod(_sizes(shape)) * dtype.itemsize:
        raise ValueError
    if not raw:
        return torch.empty(_sizes(shape), dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(_sizes(shape))


def _storage(raw: Any) -> Any:
    """Stands for torch.storage._load_from_bytes, which would run what is pickled there."""
    if type(raw) is not bytes:
        raise ValueError
    found = _torch().load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    if not isinstance(found, _torch().storage.TypedStorage):
        raise ValueError
    return found


def _rebuilt(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Any:
    """Stands for torch._utils._rebuild_tensor_v2."""
    torch = _torch()
    shape, stride = _sizes(shape), _sizes(stride)
    if not isinstance(storage, torch.storage.TypedStorage) or type(offset) is not int:
        raise ValueError
    if len(shape) != len(stride) or offset < 0:
        raise ValueError
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride))
    memory, made = storage._untyped_storage, torch.empty(0, dtype=storage.dtype)
    if 0 not in shape and last >= memory.nbytes() // made.itemsize:
        raise ValueError
    return made.set_(memory, offset, shape, stride).clone()


def _parameter(data: Any, *_: Any) -> Any:
    if not isinstance(data, _torch().Tensor):
        raise ValueError
    return data


def _device(kind: Any, index: Any = None) -> Any:
    if type(kind) is not str or type(index) not in (int, type(None)):
        raise ValueError
    return _torch().device(kind, index) if index is not None else _torch().device(kind)


# ---- Arrays --------------------------------------------------------------------------------------


class _DType:
    """Stands for a numpy.dtype, until its state is known."""

    def __init__(self, kind: str) -> None:
        self.kind, self.order = kind, "="

    def set(self, state: Any) -> None:
        """Take the byte order; structured types and the like are refused."""
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
            raise ValueError
        self.order = order

    def made(self) -> Any:
        import numpy

        made: Any = numpy.dtype(self.kind)
        return made.newbyteorder(self.order)


def _dtype(kind: Any, *_: Any) -> _DType | Stranger:
    is_plain = type(kind) is str and len(kind) <= 8 and kind[:1] in tuple("biufcSU")
    return _DType(kind) if is_plain else Stranger(f"numpy.dtype({str(kind)[:20]!r})")


class _Array:
    """Stands for a numpy.ndarray, until its contents are known."""

    def __init__(self, *_: Any) -> None:
        self.array: Any = None

    def set(self, state: Any) -> None:
        """Take shape, type and contents."""
        _, shape, dtype, is_fortran, raw = state
        self.array = _from_buffer(raw, dtype, shape, "F" if is_fortran else "C")


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> Any:
    import numpy

    if isinstance(dtype, Stranger):
        return dtype
    if not isinstance(dtype, _DType) or type(raw) not in (bytes, bytearray):
        raise ValueError
    made = dtype.made()
    if len(raw) != math.prod(_sizes(shape)) * made.itemsize or order not in ("C", "F"):
        raise ValueError
    return numpy.frombuffer(bytes(raw), made).reshape(shape, order=order).copy(order="K")


def _scalar(dtype: Any, raw: Any) -> Any:
    return _from_buffer(raw, dtype, ())[()]


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "builtins.bytearray": _bytearray,
    "builtins.complex": lambda real, imag: complex(float(real), float(imag)),
    "builtins.set": _of_list(set),
    "builtins.frozenset": _of_list(frozenset),
    "collections.OrderedDict": _of_list(collections.OrderedDict),
    "collections.Counter": _of_list(collections.Counter),
    "collections.defaultdict": _defaultdict,
    "collections.deque": _deque,
    "datetime.date": _date(datetime.date),
    "datetime.datetime": _date(datetime.datetime),
    "datetime.timedelta": _date(datetime.timedelta),
    "datetime.timezone": _date(datetime.timezone),
    "holdfast.torch._plan.Place": Place,
    "holdfast.torch._random.Seeds": lambda *parts: parts,
    "holdfast.torch._data.Mark": lambda *parts: parts,
    "holdfast._vars._tensor": _by_value,
    "torch.Size": lambda shape: _torch().Size(_sizes(shape)),
    "torch.device": _device,
    "torch.storage._load_from_bytes": _storage,
    "torch._utils._rebuild_tensor_v2": _rebuilt,
    "torch._utils._rebuild_parameter": _parameter,
    "numpy.dtype": _dtype,
    "numpy.ndarray": lambda: None,
    **{
        f"numpy.{core}.{name}": make
        for core in ("core", "_core")
        for name, make in (
            ("multiarray._reconstruct", _Array),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
    # Classes of the Python types that some pickles name: they are values, and call nothing.
    "builtins.int": lambda: None,
    "builtins.float": lambda: None,
    "builtins.list": lambda: None,
    "builtins.dict": lambda: None,
}


class _Safe(_Usual):  # type: ignore[misc]
    """The unpickler in Python, whose steps can be replaced. It allocates what it reads, no more."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Usual.dispatch)

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._size = len(content)

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global name. Nothing is imported."""
        full = f"{module}.{name}"
        if module == "torch":
            try:
                return dtype_of(name)
            except ValueError:
                pass
        return _Maker(full, _MAKERS.get(full) or (lambda *_: Stranger(full)))

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to what is not there."""
        raise ValueError

    def _call(self, maker: Any, given: Any) -> Any:
        if not isinstance(maker, _Maker) or not isinstance(given, tuple):
            raise ValueError
        return maker.make(*given)

    def _reduce(self) -> None:
        given = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], given)

    def _new(self) -> None:
        given = self.stack.pop()
        self.stack.append(self._call(self.stack.pop(), given))

    def _new_ex(self) -> None:
        named = self.stack.pop()
        if named:
            raise ValueError
        self._new()

    def _build(self) -> None:
        state, thing = self.stack.pop(), self.stack[-1]
        if isinstance(thing, (_DType, _Array)):
            thing.set(state)

    def _bytearray8(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        if size > self._size:
            raise ValueError
        self.append(bytearray(self.read(size)))

    def _refuse(self) -> None:
        raise ValueError

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _new
    dispatch[pickle.NEWOBJ_EX[0]] = _new_ex
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray8
    for _code in (pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4):
        dispatch[_code[0]] = _refuse


def loads(content: bytes | memoryview, where: str) -> Any:
    """Return what a pickle holds, with Strangers in it. UserError: it is none."""
    try:
        return _Safe(bytes(content)).load()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{where} is damaged, or was not written by Holdfast: it can not be unpickled "
            f"({type(error).__name__})"
        ) from None


def plain(thing: Any, where: str) -> Any:
    """Return a value without stand-ins. UserError: it holds what is not read from a snapshot."""
    return _Plain(where).of(thing, 0)[0]


class _Plain:
    """Makes plain values. What is held in many places is made once, but counts each time."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._done: dict[int, tuple[Any, int]] = {}

    def of(self, thing: Any, depth: int) -> tuple[Any, int]:
        """Return the value, and how many values it holds."""
        if id(thing) in self._done:
            return self._done[id(thing)]
        if isinstance(thing, (_Array, _DType)):
            thing = thing.array if isinstance(thing, _Array) else thing.made()
        if isinstance(thing, (Stranger, _Maker)):
            what = f"what `{thing.name}` makes" if isinstance(thing, Stranger) else thing.name
            raise UserError(f"{self._where} is, or holds, {what}, {_NO_CODE}")
        if depth > _DEEPEST:
            raise UserError(f"{self._where} is nested too deep, or holds itself")
        made, size = self._made(thing, depth)
        if size > _MOST:
            raise UserError(f"{self._where} holds more than {_MOST:,} values")
        self._done[id(thing)] = made, size
        return made, size

    def _made(self, thing: Any, depth: int) -> tuple[Any, int]:
        if isinstance(thing, dict):
            keys, many = self._parts(thing.keys(), depth)
            values, more = self._parts(thing.values(), depth)
            made = dict(zip(keys, values))
            return type(thing)(made), 1 + many + more
        if type(thing) not in (list, tuple, set, frozenset, collections.deque):
            return thing, 1
        parts, many = self._parts(thing, depth)
        if isinstance(thing, collections.deque):
            return collections.deque(parts, thing.maxlen), 1 + many
        return type(thing)(parts), 1 + many

    def _parts(self, things: Iterable[Any], depth: int) -> tuple[list[Any], int]:
        pairs = [self.of(thing, depth + 1) for thing in things]
        return [made for made, _ in pairs], sum(size for _, size in pairs)
