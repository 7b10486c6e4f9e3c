"""Look at who calls: which code of torch's, never what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield `frame`, and outwards who called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back
