"""Make what a network returns such that it can be pickled, and that again."""

from __future__ import annotations

from typing import Any


def pack(value: Any) -> Any:
    """Make outputs of a network such that they can be pickled."""
    if isinstance(value, (tuple, list)):
        return type(value)(pack(v) for v in value)
    if isinstance(value, dict):
        return {k: pack(v) for k, v in value.items()}
    if hasattr(value, "asnumpy"):
        return Packed(value.asnumpy().copy(), str(value.dtype))
    return value


class Packed:
    """A tensor without MindSpore."""

    def __init__(self, array: Any, dtype: str) -> None:
        self.array, self.dtype = array, dtype


def unpack(value: Any) -> Any:
    """Make what pack() made outputs again."""
    if isinstance(value, (tuple, list)):
        return type(value)(unpack(v) for v in value)
    if isinstance(value, dict):
        return {k: unpack(v) for k, v in value.items()}
    if isinstance(value, Packed):
        import mindspore

        return mindspore.Tensor(value.array, getattr(mindspore, value.dtype.lower()))
    return value
