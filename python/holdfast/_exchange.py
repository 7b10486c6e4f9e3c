"""Groups of ranks and their exchanges: the collectives of the C interface.

Memory is given as an address (`tensor.data_ptr()`) or as any object with a writable buffer.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from holdfast._abi import U64, Buffer, DType, Op, Status, address, check, lib
from holdfast._errors import UserError

_SLICE_MS: Final = 100  # The longest delay of a KeyboardInterrupt.


class Work:
    """An operation under way. It keeps the memory that it uses alive."""

    def __init__(self, handle: c.c_void_p, *keep: object) -> None:
        """Own the hf_work*, and hold all that it reads or writes."""
        self._handle = handle
        self._keep = keep

    def hold(self, *more: object) -> None:
        """Keep more owners of its memory alive, until the operation is complete."""
        self._keep += more

    def poll(self, milliseconds: int = 0) -> Status:
        """Wait `milliseconds` at most (negative: until complete); Status.PENDING: not complete."""
        return Status(lib.hf_wait(self._handle, milliseconds))

    def wait(self) -> None:
        """Wait until complete; raise an error if it failed. Ctrl-C is noticed within 0.1 s."""
        while (status := lib.hf_wait(self._handle, _SLICE_MS)) == Status.PENDING:
            pass
        check(status)

    def __del__(self) -> None:
        """Release the operation. If it is under way, a thread waits: Ctrl-C has no effect here."""
        handle, self._handle = self._handle, c.c_void_p()
        if not handle.value:
            return
        if lib.hf_wait(handle, 0) == Status.PENDING:
            # The thread keeps the memory alive, up to the end of the process.
            with suppress(RuntimeError):  # The interpreter is ending and starts no thread.
                Thread(target=_release, args=(handle, self._keep), daemon=True).start()
                return
        lib.hf_release(handle)


def _release(handle: c.c_void_p, keep: object) -> None:
    lib.hf_release(handle)  # Waits until the operation is complete.


def _blocks(data: Buffer, sizes: Sequence[int]) -> tuple[int, Any]:
    """Return the address of blocks that lie one after another, and their sizes for C."""
    return address(data), (U64 * len(sizes))(*sizes)


class Group:
    """Some ranks that do collectives together.

    Every operation has a `start_` form, which returns Work. Sizes are in elements if a DType is
    given, otherwise in bytes.
    """

    def __init__(self, handle: c.c_void_p, owned: bool) -> None:
        """Hold the hf_group*; `owned`: close() releases it."""
        self._handle = handle
        self._owned = owned

    @property
    def handle(self) -> int:
        """The hf_group*."""
        if not self._handle.value:
            raise UserError("this group was closed")
        return self._handle.value

    def close(self) -> None:
        """End the operations under way and release the group."""
        if self._owned and self._handle.value:
            lib.hf_group_close(self._handle)
        self._handle.value = None

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return int(lib.hf_group_rank(self.handle))

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return int(lib.hf_group_size(self.handle))

    def _start(self, name: str, keep: tuple[object, ...], *arguments: Any) -> Work:
        handle = c.c_void_p()
        check(getattr(lib, name)(self.handle, *arguments, c.byref(handle)))
        return Work(handle, self, *keep)

    def barrier(self) -> None:
        """Wait until every rank has come."""
        check(lib.hf_barrier(self.handle, None))

    def start_barrier(self) -> Work:
        """Start barrier()."""
        return self._start("hf_barrier", ())

    def broadcast(self, data: Buffer, nbytes: int, root: int) -> None:
        """Copy the `nbytes` at `data` from rank `root` to all."""
        check(lib.hf_broadcast(self.handle, address(data), nbytes, root, None))

    def start_broadcast(self, data: Buffer, nbytes: int, root: int) -> Work:
        """Start broadcast()."""
        return self._start("hf_broadcast", (data,), address(data), nbytes, root)

    def all_gather(self, mine: Buffer, nbytes: int, everyone: Buffer) -> None:
        """Fill `everyone` (size times `nbytes`) with each rank's `mine`, in rank order."""
        check(lib.hf_all_gather(self.handle, address(mine), nbytes, address(everyone), None))

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """Return each rank's `mine`, in rank order. Lengths may differ."""
        size = self.size
        lengths = (U64 * size)()
        self.all_gather((U64 * 1)(len(mine)), c.sizeof(U64), lengths)
        most = max(lengths)
        everyone = bytearray(most * size)
        if most > 0:
            self.all_gather(bytearray(mine.ljust(most, b"\0")), most, everyone)
        return [bytes(everyone[i * most : i * most + lengths[i]]) for i in range(size)]

    def start_all_gather(self, mine: Buffer, nbytes: int, everyone: Buffer) -> Work:
        """Start all_gather()."""
        return self._start(
            "hf_all_gather", (mine, everyone), address(mine), nbytes, address(everyone)
        )

    def all_reduce(self, data: Buffer, count: int, dtype: DType, op: Op = Op.SUM) -> None:
        """Reduce `count` elements in place over all ranks, in rank order."""
        check(lib.hf_all_reduce(self.handle, address(data), count, dtype, op, None))

    def all_reduce_into(
        self, mine: Buffer, to: Buffer, count: int, dtype: DType, op: Op = Op.SUM
    ) -> None:
        """Reduce `count` elements of `mine` into `to`. Other ranks may call all_reduce()."""
        check(
            lib.hf_all_reduce_into(self.handle, address(mine), address(to), count, dtype, op, None)
        )

    def start_all_reduce(self, data: Buffer, count: int, dtype: DType, op: Op = Op.SUM) -> Work:
        """Start all_reduce()."""
        return self._start("hf_all_reduce", (data,), address(data), count, dtype, op)

    def reduce_scatter(
        self, everyone: Buffer, mine: Buffer, count: int, dtype: DType, op: Op = Op.SUM
    ) -> None:
        """Reduce `everyone` (size times `count`). `mine` gets this rank's block (`count`)."""
        given = address(everyone), address(mine), count, dtype, op
        check(lib.hf_reduce_scatter(self.handle, *given, None))

    def start_reduce_scatter(
        self, everyone: Buffer, mine: Buffer, count: int, dtype: DType, op: Op = Op.SUM
    ) -> Work:
        """Start reduce_scatter()."""
        given = address(everyone), address(mine), count, dtype, op
        return self._start("hf_reduce_scatter", (everyone, mine), *given)

    def all_to_all(
        self, send: Buffer, send_bytes: Sequence[int], receive: Buffer, receive_bytes: Sequence[int]
    ) -> None:
        """Send block i of `send` to rank i; blocks lie one after another, in rank order."""
        to = _blocks(send, send_bytes)
        check(lib.hf_all_to_all(self.handle, *to, *_blocks(receive, receive_bytes), 0, None))

    def start_all_to_all(
        self, send: Buffer, send_bytes: Sequence[int], receive: Buffer, receive_bytes: Sequence[int]
    ) -> Work:
        """Start all_to_all()."""
        blocks = *_blocks(send, send_bytes), *_blocks(receive, receive_bytes)
        return self._start("hf_all_to_all", (send, receive), *blocks, 0)

    def send(self, data: Buffer, nbytes: int, to: int, tag: int = 0) -> None:
        """Send to a rank, and wait for its receive() with the same tag. Tags count modulo 64."""
        check(lib.hf_send_tagged(self.handle, address(data), nbytes, to, tag, None))

    def start_send(self, data: Buffer, nbytes: int, to: int, tag: int = 0) -> Work:
        """Start send()."""
        return self._start("hf_send_tagged", (data,), address(data), nbytes, to, tag)

    def receive(self, data: Buffer, nbytes: int, source: int, tag: int = 0) -> None:
        """Receive the data that rank `source` sends with the same tag."""
        check(lib.hf_receive_tagged(self.handle, address(data), nbytes, source, tag, None))

    def start_receive(self, data: Buffer, nbytes: int, source: int, tag: int = 0) -> Work:
        """Start receive()."""
        return self._start("hf_receive_tagged", (data,), address(data), nbytes, source, tag)
