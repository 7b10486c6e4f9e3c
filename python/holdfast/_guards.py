"""Guards for memory of the program that is brought back from the last version after a fault.

A memory error takes a page from time to time. In guarded memory the page then holds zeros, and the
step under way is void; anywhere else the process ends, and is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast._abi import lib


def memory_lost() -> int:
    """Return how many pages of memory that Guards guard this process has lost so far."""
    return int(lib.hf_memory_lost())


def pages_lost() -> int:
    """Return the same, and those of the state's own memory."""
    return int(lib.hf_pages_lost())


class Guards:
    """Guards over ranges of memory. Release them before the memory is freed."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Guard the whole pages in each range, an address and a size in bytes."""
        self._guards = [guard for at, size in ranges if (guard := lib.hf_guard(at, size))]

    def release(self) -> None:
        """Guard nothing any more."""
        while self._guards:
            lib.hf_unguard(self._guards.pop())
