"""The worker and its session: the C interface (include/holdfast/c.h) as Python classes.

c.h documents the meaning of everything. The GIL is not held while waiting. Memory is given as an
address (`tensor.data_ptr()`) or as any object with a writable buffer.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple

from holdfast._abi import (
    I32,
    U64,
    CLayout,
    CParameter,
    CPlace,
    CPosition,
    CRange,
    CStep,
    Optimizer,
    address,
    bytes_at,
    check,
    floats_at,
    last_error,
    lib,
)
from holdfast._errors import UserError, WorldError
from holdfast._exchange import Group
from holdfast._hosts import Host, hosts_of
from holdfast._key_values import KeyValues
from holdfast._memory import Memory
from holdfast._waiting import abandoned, interruptibly

# For hf_layout.flags.
_PRIVATE_OWN: Final = 1
_PRIVATE_OWN_LATER: Final = 2
_PRIVATE_AS_USED: Final = 4


class Place(NamedTuple):
    """The place of this process in its job."""

    rank: int
    world_size: int
    run_id: int  # Of this run of the job: the same in all its processes.
    attempt: int  # Counts the processes that had this place, from 1; 0: no agent.
    node_id: str  # MS_NODE_ID.
    directory: str  # On tmpfs, the same for all ranks of a host.
    job: str


@dataclass(frozen=True)
class Position:
    """Where in the data a version stands. Holdfast stores it and does not interpret it."""

    epoch: int = 0
    index: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Step:
    """The arguments of end_step(). The layout's optimizer uses only those that it knows."""

    position: Position = Position()  # After this step.
    loss: float = 0.0  # Only shown, by the status and by traces.
    learning_rate: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    update_count: int = 1
    used: Sequence[tuple[int, int]] = ()  # Offset and size of the private bytes in use; (): all.


_START: Final = Position()
RESULTS: Final = ""  # The name of a note: what follows are results of the step's exchanges.


def _position(position: Position) -> CPosition:
    return CPosition(position.epoch, position.index, position.samples)


class Worker(KeyValues):
    """A process in its job. There is one Worker per process, made in the main thread."""

    def __init__(self) -> None:
        """Start as the environment says. With MS_ROLE=MS_SCHED, serve the job and exit in here."""
        self._handle = c.c_void_p()
        self._stops_on_exit = False
        check(lib.hf_start(c.byref(self._handle)))

    @property
    def handle(self) -> int:
        """The hf_worker*."""
        if not self._handle.value:
            raise UserError("this worker was stopped")
        return self._handle.value

    def stop(self) -> None:
        """Disconnect, unless end_on_exit() is to do so. Requires: sessions, groups are closed."""
        if self._handle.value and not self._stops_on_exit:
            lib.hf_stop(self._handle)
            self._handle.value = None

    @property
    def solo(self) -> bool:
        """Whether this process is a world of its own, without a scheduler."""
        return bool(lib.hf_is_solo(self.handle))

    @property
    def waits_spare(self) -> bool:
        """Whether identity() would wait for a place to become free."""
        return bool(lib.hf_waits_spare(self.handle))

    @property
    def rehearses(self) -> bool:
        """Whether this process only rehearses a rank's step, and takes no part in the job."""
        return bool(lib.hf_rehearses(self.handle))

    def rehearsal_differs(self, what: str) -> None:
        """Say in a rehearsal how the program departs from what the rank did. Ends the process."""
        lib.hf_rehearsal_differs(self.handle, what.encode())

    def rehearsal_skips(self, why: str) -> None:
        """Say why the program can not be rehearsed. A rehearsal ends in here."""
        lib.hf_rehearsal_skips(self.handle, why.encode())

    @property
    def bound_rank(self) -> int | None:
        """The rank that this spare is bound to, known without waiting; else None."""
        rank: int = lib.hf_bound_rank(self.handle)
        return None if rank < 0 else rank

    def identity(self) -> Place:
        """Wait for this process's place. A spare that is never needed exits here with code 0."""
        place = CPlace()
        interruptibly(lambda: check(lib.hf_identity(self.handle, c.byref(place))))
        return Place(
            place.rank,
            place.world_size,
            place.run_id,
            place.attempt,
            os.fsdecode(place.node_id),
            os.fsdecode(place.directory),
            os.fsdecode(place.job),
        )

    def fail(self, reason: str) -> WorldError:
        """Tell all processes that the job can not go on; return the error to raise."""
        lib.hf_fail(self.handle, reason.encode())
        return WorldError(last_error())

    def prepare(self, private_bytes: int) -> None:
        """Take the state's memory ahead of time, in a spare on a spare host. Before identity()."""
        layout = CLayout(None, 0, int(Optimizer.SGD), 0, private_bytes, 0)
        check(lib.hf_prepare(self.handle, c.byref(layout)))

    def open(
        self,
        parameters: Sequence[tuple[str, int]] = (),
        optimizer: Optimizer = Optimizer.SGD,
        private_bytes: int = 0,
        own_private: bool = False,
        own_later: bool = False,
        common_bytes: int = 0,
        as_used: bool = False,
    ) -> Session:
        """Open the state. `parameters` holds names with their numbers of float32 elements.

        Private bytes are each rank's own with `own_private`, but the first `common_bytes` of them
        are equal on all ranks from version 1 on. `own_later`: they are each rank's own from version
        1 on. Neither: a rank that has lost them gets those of another rank. `as_used`: their memory
        is taken by Session.take().
        """
        flags = (_PRIVATE_OWN if own_private else 0) | (_PRIVATE_OWN_LATER if own_later else 0)
        flags |= _PRIVATE_AS_USED if as_used else 0
        return Session(self, parameters, optimizer, (private_bytes, common_bytes), flags)

    def early_group(self, ranks: Sequence[int], name: str) -> Group:
        """Open a group that needs no session. After a fault it can not be used any more."""
        array = (I32 * len(ranks))(*ranks)
        handle = c.c_void_p()
        check(
            lib.hf_early_group_open(self.handle, array, len(ranks), name.encode(), c.byref(handle))
        )
        return Group(handle, owned=True)


class Session:
    """A state that outlives its process. Only one thread at a time may call it."""

    def __init__(
        self,
        worker: Worker,
        parameters: Sequence[tuple[str, int]],
        optimizer: Optimizer,
        private_bytes: tuple[int, int],
        flags: int,
    ) -> None:
        """Wait for the rank and open the state as its predecessor left it."""
        array = (CParameter * len(parameters))(
            *(CParameter(name.encode(), elements) for name, elements in parameters)
        )
        layout = CLayout(array, len(parameters), int(optimizer), flags, *private_bytes)
        self._worker = worker  # The worker must outlive its session.
        self.rehearses: Final = worker.rehearses
        self._handle = c.c_void_p()
        worker.identity()  # May wait long: Ctrl-C ends this wait, but not that of hf_open().
        check(lib.hf_open(worker.handle, c.byref(layout), c.byref(self._handle)))
        self._world = Group(c.c_void_p(lib.hf_world(self._handle)), owned=False)

    @property
    def handle(self) -> int:
        """The hf_session*."""
        if not self._handle.value:
            raise UserError("this session was closed")
        return self._handle.value

    def close(self) -> None:
        """Unmap the state; views of it become invalid. Without end(), the rank is lost."""
        if self._handle.value:
            self._worker._stops_on_exit = False
            lib.hf_close(self._handle)
            self._handle.value = None

    @property
    def fresh(self) -> bool:
        """Whether there is no version yet, so that version 0 has to be filled before join()."""
        return bool(lib.hf_fresh(self.handle))

    @property
    def version(self) -> int:
        """The committed version, or NO_VERSION if fresh."""
        return int(lib.hf_version(self.handle))

    @property
    def generation(self) -> int:
        """The generation of the group. Every recovery makes a higher one; 0 before the first."""
        return int(lib.hf_generation(self.handle))

    @property
    def marked(self) -> bool:
        """Whether the generation has ended, so that the step under way will be void."""
        return bool(lib.hf_marked(self.handle))

    @property
    def position(self) -> Position:
        """The position of the committed version."""
        p = lib.hf_position_of(self.handle)
        return Position(p.epoch, p.index, p.samples)

    @property
    def world(self) -> Group:
        """The group of all ranks."""
        return self._world

    def hosts(self) -> list[Host]:
        """Return the process of each rank, in rank order. All ranks have to call it."""
        return hosts_of(self._worker.handle, self.world)

    def group(self, ranks: Sequence[int], name: str) -> Group:
        """Open a group of some ranks. `name` is the same in all members, and for this list only."""
        array = (I32 * len(ranks))(*ranks)
        handle = c.c_void_p()
        check(lib.hf_group_open(self.handle, array, len(ranks), name.encode(), c.byref(handle)))
        return Group(handle, owned=True)

    def register(self, size: int, given: int | None = None) -> Memory:
        """Register memory whose sums need no copies: new, or the pages at address `given`.

        It stays registered until Memory.close(), even if the Memory is dropped.
        """
        return Memory(self.handle, size, given)

    def _found(self, function: Any, *which: int) -> tuple[c.c_void_p, int]:
        """Return where `function` says that something lies, and how much of it there is."""
        p, n = c.c_void_p(), U64()
        check(function(self.handle, *which, c.byref(p), c.byref(n)))
        return p, n.value

    def parameter(self, i: int) -> memoryview[float]:
        """Return parameter `i`, float32."""
        return floats_at(*self._found(lib.hf_parameter_of, i))

    def gradient(self, i: int) -> memoryview[float]:
        """Return the gradient of parameter `i`, float32."""
        return floats_at(*self._found(lib.hf_gradient_of, i))

    def moment(self, k: int, i: int) -> memoryview[float]:
        """Return the `k`-th moment of parameter `i`, float32."""
        return floats_at(*self._found(lib.hf_moment_of, k, i))

    def gradients(self) -> memoryview[float]:
        """Return all gradients with their padding. reduce() counts its elements in this view."""
        return floats_at(*self._found(lib.hf_gradients))

    def private(self, version: int) -> memoryview[int]:
        """Return the private bytes of self.version (read only) or self.version + 1 (to fill)."""
        return bytes_at(*self._found(lib.hf_private, version))

    def take(self, offset: int, size: int) -> None:
        """Take memory for private bytes of the version to fill. WorldError: there is no room."""
        check(lib.hf_take(self.handle, c.byref(CRange(offset, size))))

    def uses_committed(self) -> None:
        """Say that the version under way repeats private bytes of the last one."""
        lib.hf_uses_committed(self.handle)

    def join(self, position: Position = _START) -> None:
        """Agree with the others on a version and bring this rank's state to it."""
        native = _position(position)
        interruptibly(lambda: check(lib.hf_join(self.handle, c.byref(native))))

    def meet(self, position: Position = _START) -> bool:
        """Do as join() does, but do not require version 0 to be filled before.

        True: version 0 is needed, so fill private(0) and call meet() again. False: all have joined.
        """
        native, to_fill = _position(position), c.c_int()
        answer = c.byref(to_fill)
        interruptibly(lambda: check(lib.hf_meet(self.handle, c.byref(native), answer)))
        return bool(to_fill.value)

    def begin_step(self) -> bool:
        """Begin a step. True: the group was formed anew, so restore from private(version).

        Errors: LeftError if another rank's training has ended; end() may still be called.
        """
        reformed = c.c_int()
        if self.marked:
            interruptibly(lambda: check(lib.hf_begin_step(self.handle, c.byref(reformed))))
        else:  # This call returns at once, so it needs no helper thread.
            check(lib.hf_begin_step(self.handle, c.byref(reformed)))
        return bool(reformed.value)

    def sample(self) -> bool:
        """Return whether the step that has just begun is recorded for a rehearsal, or rehearsed."""
        return bool(lib.hf_sample(self.handle))

    def note(self, name: str, data: bytes | memoryview[int]) -> None:
        """Note the digest of what a recorded step uses or makes, for a rehearsal to compare."""
        if isinstance(data, memoryview) and data.readonly:
            data = bytes(data)
        self.note_at(name, address(data), len(data))

    def note_at(self, name: str, place: int, count: int) -> None:
        """Do as note() does, for `count` bytes at address `place`."""
        lib.hf_note(self.handle, name.encode(), place, count)

    @contextmanager
    def uncompared(self) -> Iterator[None]:
        """Let a rehearsal compare only the sizes of what this block gives to exchanges."""
        lib.hf_compare_exchanges(self.handle, 0)
        try:
            yield
        finally:
            lib.hf_compare_exchanges(self.handle, 1)

    def reduce(self, offset: int, count: int) -> None:
        """Start the sum of gradients()[offset : offset + count] over all ranks."""
        check(lib.hf_reduce(self.handle, offset, count))

    def end_step(self, step: Step) -> bool:
        """End the step. True: a fault made it void, so restore and make it again."""
        s = step
        rates = s.learning_rate, s.momentum, s.beta1, s.beta2, s.epsilon, s.weight_decay
        used = (CRange * len(s.used))(*(CRange(*part) for part in s.used))
        native = CStep(_position(s.position), s.loss, *rates, s.update_count, used, len(s.used))
        is_void = c.c_int()
        check(lib.hf_end_step(self.handle, c.byref(native), c.byref(is_void)))
        return bool(is_void.value)

    def end(self) -> None:
        """Say that the training ended well; wait until this is recorded."""
        interruptibly(lambda: check(lib.hf_end(self.handle)))
        self._worker._stops_on_exit = False

    def end_on_exit(self) -> None:
        """Make the process call end() when it exits with code 0. Any other code is a loss.

        The C library's on_exit() learns the exit code, whatever ended the program. Its handlers run
        after Python's own.
        """
        handler = c.cast(lib.hf_end_on_exit, c.c_void_p)
        libc = c.CDLL(None)
        libc.on_exit.argtypes = [c.c_void_p, c.c_void_p]
        if libc.on_exit(handler, self.handle) != 0:
            raise WorldError("no memory is left for one more exit handler (on_exit)")
        self._worker._stops_on_exit = True
        if "multiprocessing.process" in sys.modules:
            from multiprocessing import parent_process, util

            if parent_process() is not None:  # A forked child ends by os._exit() alone.
                util.Finalize(None, self._end_child, exitpriority=-1)

    def _end_child(self) -> None:
        error = sys.exc_info()[1]  # Raised by the child's function.
        code = error.code if isinstance(error, SystemExit) else error
        lib.hf_end_on_exit(int(code not in (None, 0)), self._handle)

    def __enter__(self) -> Session:
        """Close at the end of the block, and end() if nothing was raised."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the block."""
        if kind is None:
            self.end()
        if not abandoned():
            self.close()
