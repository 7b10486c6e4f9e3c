"""Memory that the ranks of a session share for sums without copies."""

from __future__ import annotations

import ctypes as c
from typing import Final

from holdfast._abi import bytes_at, check, lib
from holdfast._errors import UserError


class Memory:
    """Registered memory: sums of it over all ranks need no copies. See hf_register() in c.h."""

    def __init__(self, session: int, size: int, given: int | None) -> None:
        """Register new memory, or the pages at address `given`."""
        self._handle = c.c_void_p()
        self.size: Final = size
        check(lib.hf_register(session, given, size, c.byref(self._handle)))

    @property
    def address(self) -> int:
        """The address of the memory."""
        return int(lib.hf_memory_data(self._open()))

    @property
    def file(self) -> int:
        """The descriptor of the memory's file, open while the memory is registered."""
        return int(lib.hf_memory_file(self._open()))

    def view(self) -> memoryview[int]:
        """Return the memory's bytes. A view of new memory is invalid after close()."""
        return bytes_at(c.c_void_p(self.address), self.size)

    def close(self) -> None:
        """Unregister the memory; new memory is freed. Requires: no operation uses it."""
        lib.hf_unregister(self._handle)
        self._handle.value = None

    def _open(self) -> c.c_void_p:
        if not self._handle.value:
            raise UserError("this memory is no more registered")
        return self._handle
