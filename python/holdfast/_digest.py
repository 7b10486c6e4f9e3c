"""Digests of anything that a program holds: equal for equal contents, in every process.

Tensors and arrays count by their bytes, containers and plain objects by their contents. An object
without contents of its own (a lock, a file, a module, code) equals all of its kind.
"""

from __future__ import annotations

import collections
import datetime
import enum
import hashlib
import pathlib
import random
import sys
from typing import Any, Final

from holdfast._vars import raw_bytes

SCALARS: Final = (type(None), bool, int, float, complex, str, bytes)
_DEEP: Final = 12
_MANY: Final = 200_000


def is_scalar(thing: Any) -> bool:
    """Whether it is a plain value without parts."""
    return isinstance(thing, (*SCALARS, enum.Enum, pathlib.PurePath, datetime.date))


def text_of(thing: Any) -> str:
    """Return a plain value as text. An enumeration's own repr() may fail, as that of Ignite's."""
    named = isinstance(thing, enum.Enum) and isinstance(thing.name, str)
    return thing.name if named else repr(thing)


def tensor_bytes(thing: Any) -> tuple[str, memoryview] | None:
    """Return the kind and bytes of a tensor or an array; None if `thing` is neither."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(thing, torch.Tensor):
        thing = thing.detach()
        thing = thing.to_local() if hasattr(thing, "to_local") else thing
        kind = f"{thing.dtype}{tuple(thing.shape)}"
        if thing.is_meta:
            return kind, memoryview(b"")
        if thing.layout is torch.sparse_coo:  # It may be far too large if it is dense.
            whole = thing.coalesce()
            return kind, memoryview(raw_bytes(whole.indices()) + raw_bytes(whole.values()))
        if thing.is_nested:
            rows = thing.unbind()
            return kind + str([tuple(row.shape) for row in rows]), memoryview(
                b"".join(raw_bytes(row) for row in rows)
            )
        if thing.layout is not torch.strided:
            thing = thing.to_dense()
        if thing.is_quantized:
            thing = thing.int_repr()
        thing = thing.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return kind, memoryview(raw_bytes(thing))
    if numpy is not None and isinstance(thing, (numpy.ndarray, numpy.generic)):
        array = numpy.ascontiguousarray(thing)
        kind = f"{array.dtype}{array.shape}"
        if array.dtype.hasobject:
            return None if array.ndim == 0 else (kind, memoryview(repr(array.tolist()).encode()))
        return kind, memoryview(array.reshape(-1).view(numpy.uint8))
    if type(thing).__module__.partition(".")[0] == "mindspore" and hasattr(thing, "asnumpy"):
        return tensor_bytes(thing.asnumpy())
    return None


def generator_state(thing: Any) -> Any:
    """Return the state of a random generator; None if `thing` is none."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return thing.getstate()
    if torch is not None and isinstance(thing, torch.Generator):
        return thing.get_state()
    if numpy is not None and isinstance(thing, numpy.random.Generator):
        return thing.bit_generator.state
    if numpy is not None and isinstance(thing, numpy.random.RandomState):
        return thing.get_state()
    return None


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._path: set[int] = set()
        self._seen = 0

    def add(self, thing: Any, depth: int = 0) -> None:
        self._seen += 1
        if depth > _DEEP or self._seen > _MANY:
            self._hash.update(b"...")
        elif is_scalar(thing):
            self._hash.update(f"{type(thing).__name__}:{text_of(thing)};".encode(errors="replace"))
        elif (found := tensor_bytes(thing)) is not None:
            self._hash.update(found[0].encode())
            self._hash.update(found[1])
        elif id(thing) in self._path:
            self._hash.update(b"again")
        else:
            self._path.add(id(thing))
            self._add_parts(thing, depth + 1)
            self._path.discard(id(thing))

    def _add_parts(self, thing: Any, depth: int) -> None:
        kind = type(thing).__name__
        if isinstance(thing, (dict, collections.abc.Mapping)):
            self._hash.update(f"{kind}{len(thing)}{{".encode())
            for key, value in thing.items():
                self.add(key, depth)
                self.add(value, depth)
        elif isinstance(thing, (set, frozenset)):
            self._hash.update(f"{kind}{sorted(digest(x) for x in thing)}".encode())
        elif isinstance(thing, (list, tuple, collections.deque, bytearray)):
            self._hash.update(f"{kind}{len(thing)}[".encode())
            for part in thing:
                self.add(part, depth)
        elif (state := generator_state(thing)) is not None:
            self.add(state, depth)
        else:
            self._hash.update(kind.encode())
            for name, value in sorted(attributes(thing).items()):
                self.add(name, depth)
                self.add(value, depth)

    def hex(self) -> str:
        return self._hash.hexdigest()


def attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of a plain object, slots included; nothing for other things."""
    if isinstance(thing, type) or hasattr(thing, "__code__"):
        return {}
    if hasattr(type(thing), "has_no_digest"):  # What differs in every run.
        return {}
    if type(thing).__module__ in ("builtins", "_thread", "_io", "threading", "types"):
        return {}
    found = dict(getattr(thing, "__dict__", None) or {})
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                found[name] = getattr(thing, name)
    return {str(name): value for name, value in found.items()}


def digest(thing: Any) -> str:
    """Return 16 hexadecimal digits that stand for the contents of a thing."""
    found = _Digest()
    found.add(thing)
    return found.hex()


def shown(thing: Any) -> str:
    """Return the thing as text if it is short, else its kind and its digest."""
    if is_scalar(thing):
        text = text_of(thing)
        return text if len(text) <= 60 else f"{text[:40]}... #{digest(thing)}"
    if (found := tensor_bytes(thing)) is not None:
        # item() of a shard would ask the other ranks.
        if 0 < len(found[1]) <= 8 and not hasattr(thing, "to_local") and thing.shape in ((), (1,)):
            return repr(thing.item())
        return f"{type(thing).__name__} {found[0]} #{digest(thing)}"
    if (brief := short(thing)) is not None:
        return brief
    length = f" of {len(thing)}" if isinstance(thing, (list, tuple, dict, set)) else ""
    return f"{type(thing).__name__}{length} #{digest(thing)}"


def short(thing: Any) -> str | None:
    """Return a small container of plain values as text; None for other things."""
    if type(thing) in (list, tuple, dict) and len(thing) <= 6:
        parts = thing.items() if isinstance(thing, dict) else enumerate(thing)
        if all(is_scalar(key) and is_scalar(value) for key, value in parts):
            text = repr(thing)
            if len(text) <= 60:
                return text
    return None
