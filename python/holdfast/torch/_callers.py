"""Find out who asks for a collective: torch does not tell its groups, but the call stack does.

A caller is known by its module or by its code object. No source text is searched.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

import torch.distributed as dist

# Modules that exchange values of their own, which State restores.
_FRAMEWORKS: Final = ("torch.nn.parallel.", "torch.distributed.fsdp.", "torch.distributed.tensor.")
_RECEIVE_OBJECTS: Final[dict[CodeType, str]] = {
    inspect.unwrap(call).__code__: call.__name__
    for call in (dist.broadcast_object_list, dist.scatter_object_list, dist.recv_object_list)
}


def _callers() -> Iterator[FrameType]:
    """Yield the frames of the call stack, from the innermost that is not this package's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame).startswith("holdfast.torch."):
        frame = frame.f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def is_of_a_framework() -> bool:
    """Return whether DistributedDataParallel, FSDP or a DTensor asks for the collective."""
    return any(f"{_module_of(frame)}.".startswith(_FRAMEWORKS) for frame in _callers())


def is_of_the_program() -> bool:
    """Return whether torch.distributed was called, and not DDP's reducer in a backward pass."""
    frame = next(_callers(), None)  # None: C++ calls, on a thread of its own.
    return frame is not None and _module_of(frame) == dist.distributed_c10d.__name__


def wanted_objects() -> str:
    """Return the call, if any, that will unpickle another rank's bytes: an echo would be wrong."""
    return next((name for f in _callers() if (name := _RECEIVE_OBJECTS.get(f.f_code))), "")
