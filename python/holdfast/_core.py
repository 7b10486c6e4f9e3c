"""Bind the C interface (include/holdfast/c.h) by ctypes; the GIL is not held while waiting.

The meaning of everything is documented in c.h. Memory is given as an address (`tensor.data_ptr()`)
or as any object with a writable buffer.
"""

from __future__ import annotations

import ctypes as c
import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Union

from holdfast._errors import Error, MarkedError, PeerError, UserError, WorldError
from holdfast._waiting import abandoned, interruptibly

ABI_VERSION: Final = 1
NO_VERSION: Final = 2**64 - 1
_LIBRARY: Final = "libholdfast.so"
_SLICE_MS: Final = 100  # How late a KeyboardInterrupt may come.


class Status(enum.IntEnum):
    """hf_status."""

    OK = 0
    USER = 1
    PEER = 2
    WORLD = 3
    ABORTED = 4
    LEFT = 5
    MISMATCH = 6
    PENDING = 7


class Optimizer(enum.IntEnum):
    """hf_optimizer."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAMW = 3


class DType(enum.IntEnum):
    """hf_dtype."""

    FLOAT32 = 0
    FLOAT64 = 1
    INT32 = 2
    INT64 = 3
    FLOAT16 = 4
    BFLOAT16 = 5
    INT8 = 6
    UINT8 = 7
    INT16 = 8
    BOOL = 9

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return (4, 8, 4, 8, 2, 2, 1, 1, 2, 1)[self]


class Op(enum.IntEnum):
    """hf_op."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AND = 4
    OR = 5
    XOR = 6
    AVERAGE = 7


class _Place(c.Structure):
    _fields_ = [
        ("rank", c.c_int32),
        ("world_size", c.c_int32),
        ("run_id", c.c_uint64),
        ("attempt", c.c_uint64),
        ("node_id", c.c_char_p),
        ("directory", c.c_char_p),
        ("job", c.c_char_p),
    ]


class _Parameter(c.Structure):
    _fields_ = [("name", c.c_char_p), ("elements", c.c_uint64)]


class _Layout(c.Structure):
    _fields_ = [
        ("parameters", c.POINTER(_Parameter)),
        ("parameter_count", c.c_uint64),
        ("optimizer", c.c_uint32),
        ("flags", c.c_uint32),
        ("private_bytes", c.c_uint64),
    ]


class _Position(c.Structure):
    _fields_ = [("epoch", c.c_uint64), ("index", c.c_uint64), ("samples", c.c_uint64)]


class _Step(c.Structure):
    _fields_ = [
        ("position", _Position),
        ("loss", c.c_double),
        ("learning_rate", c.c_double),
        ("momentum", c.c_double),
        ("beta1", c.c_double),
        ("beta2", c.c_double),
        ("epsilon", c.c_double),
        ("weight_decay", c.c_double),
        ("update_count", c.c_uint64),
    ]


_P = c.c_void_p
_PP = c.POINTER(c.c_void_p)
_U64 = c.c_uint64
_I32 = c.c_int32
# name: (result, arguments); None as the result stands for an hf_status.
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "hf_abi_version": (c.c_uint32, []),
    "hf_last_error": (c.c_char_p, []),
    "hf_start": (c.c_int, [_PP]),
    "hf_stop": (None, [_P]),
    "hf_is_solo": (c.c_int, [_P]),
    "hf_waits_spare": (c.c_int, [_P]),
    "hf_identity": (c.c_int, [_P, c.POINTER(_Place)]),
    "hf_fail": (c.c_int, [_P, c.c_char_p]),
    "hf_open": (c.c_int, [_P, c.POINTER(_Layout), _PP]),
    "hf_close": (None, [_P]),
    "hf_fresh": (c.c_int, [_P]),
    "hf_version": (_U64, [_P]),
    "hf_generation": (_U64, [_P]),
    "hf_position_of": (_Position, [_P]),
    "hf_marked": (c.c_int, [_P]),
    "hf_parameter_of": (c.c_int, [_P, _U64, _PP, c.POINTER(_U64)]),
    "hf_gradient_of": (c.c_int, [_P, _U64, _PP, c.POINTER(_U64)]),
    "hf_moment_of": (c.c_int, [_P, c.c_uint32, _U64, _PP, c.POINTER(_U64)]),
    "hf_gradients": (c.c_int, [_P, _PP, c.POINTER(_U64)]),
    "hf_private": (c.c_int, [_P, _U64, _PP, c.POINTER(_U64)]),
    "hf_join": (c.c_int, [_P, c.POINTER(_Position)]),
    "hf_begin_step": (c.c_int, [_P, c.POINTER(c.c_int)]),
    "hf_reduce": (c.c_int, [_P, _U64, _U64]),
    "hf_end_step": (c.c_int, [_P, c.POINTER(_Step), c.POINTER(c.c_int)]),
    "hf_end": (c.c_int, [_P]),
    "hf_world": (_P, [_P]),
    "hf_group_open": (c.c_int, [_P, c.POINTER(_I32), _U64, c.c_char_p, _PP]),
    "hf_early_group_open": (c.c_int, [_P, c.POINTER(_I32), _U64, c.c_char_p, _PP]),
    "hf_group_close": (None, [_P]),
    "hf_group_rank": (_I32, [_P]),
    "hf_group_size": (_I32, [_P]),
    "hf_wait": (c.c_int, [_P, c.c_int64]),
    "hf_release": (None, [_P]),
    "hf_barrier": (c.c_int, [_P, _PP]),
    "hf_broadcast": (c.c_int, [_P, _P, _U64, _I32, _PP]),
    "hf_all_gather": (c.c_int, [_P, _P, _U64, _P, _PP]),
    "hf_all_reduce": (c.c_int, [_P, _P, _U64, c.c_int, c.c_int, _PP]),
    "hf_reduce_scatter": (c.c_int, [_P, _P, _P, _U64, c.c_int, c.c_int, _PP]),
    "hf_all_to_all": (c.c_int, [_P, _P, c.POINTER(_U64), _P, c.POINTER(_U64), _U64, _PP]),
    "hf_send": (c.c_int, [_P, _P, _U64, _I32, _PP]),
    "hf_receive": (c.c_int, [_P, _P, _U64, _I32, _PP]),
}


def library_path() -> Path:
    """Return where libholdfast.so lies: beside this package."""
    return Path(__file__).resolve().parent / "lib" / _LIBRARY


def _load() -> c.CDLL:
    path = library_path()
    if not path.exists():
        raise ImportError(
            f"{path} is missing; install Holdfast with `pip install .`, or put the `python` folder "
            "of a build tree on PYTHONPATH (target python_package)"
        )
    loaded = c.CDLL(str(path))  # CDLL, not PyDLL: the GIL is released during every call.
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    version = loaded.hf_abi_version()
    if version != ABI_VERSION:
        raise ImportError(
            f"{path} has interface version {version}, this package needs {ABI_VERSION}; "
            "install both from one release"
        )
    return loaded


lib: Final = _load()

_ERRORS: Final[dict[int, type[Error]]] = {
    Status.USER: UserError,
    Status.PEER: PeerError,
    Status.WORLD: WorldError,
    Status.ABORTED: MarkedError,
    Status.LEFT: MarkedError,
    Status.MISMATCH: PeerError,
}


def last_error() -> str:
    """Return the sentence on the last call of this thread that failed."""
    text: bytes = lib.hf_last_error()
    return text.decode("utf-8", "replace")


def check(status: int) -> None:
    """Raise the error that `status` stands for, if any."""
    if status != Status.OK:
        raise _ERRORS.get(status, Error)(last_error())


Buffer = Union[int, bytes, bytearray, memoryview, Any]


def _address(data: Buffer) -> int:
    """Return the address of `data`, an address already or an object with a buffer."""
    if isinstance(data, int):
        return data
    if isinstance(data, bytes):
        return c.cast(c.c_char_p(data), c.c_void_p).value or 0
    view = memoryview(data)
    if view.nbytes == 0:
        return 0
    return c.addressof(c.c_char.from_buffer(view))


def _bytes(pointer: c.c_void_p, count: int) -> memoryview[int]:
    """Return `count` bytes at `pointer` as a writable view."""
    array = (c.c_uint8 * count).from_address(pointer.value or 0) if count else (c.c_uint8 * 0)()
    return memoryview(array).cast("B")


def _floats(pointer: c.c_void_p, count: int) -> memoryview[float]:
    """Return `count` float32 at `pointer` as a writable view."""
    return _bytes(pointer, 4 * count).cast("f")


class Place(NamedTuple):
    """Where this process stands in its job."""

    rank: int
    world_size: int
    run_id: int
    attempt: int  # Counts the processes that had this place, from 1; 0: no agent.
    node_id: str
    directory: str
    job: str


@dataclass(frozen=True)
class Position:
    """Where in the data a version stands; not interpreted."""

    epoch: int = 0
    index: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Step:
    """What end_step() needs; of the update's arguments those of the layout's optimizer count."""

    position: Position = Position()
    loss: float = 0.0
    learning_rate: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    update_count: int = 1


_START: Final = Position()


def _position(position: Position) -> _Position:
    return _Position(position.epoch, position.index, position.samples)


class Worker:
    """A process in its job; one per process, made in the main thread."""

    def __init__(self) -> None:
        """Start from the environment. As MS_SCHED serve the job and exit in here."""
        self._handle = c.c_void_p()
        check(lib.hf_start(c.byref(self._handle)))

    @property
    def handle(self) -> int:
        """The hf_worker*."""
        if not self._handle.value:
            raise UserError("this worker was stopped")
        return self._handle.value

    def stop(self) -> None:
        """Hang up. Sessions and groups were closed before."""
        if self._handle.value:
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

    def identity(self) -> Place:
        """Wait for the rank. A spare waits here for its place, and may end here."""
        place = _Place()
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
        """Tell everybody that the job can not go on; return the error to raise."""
        lib.hf_fail(self.handle, reason.encode())
        return WorldError(last_error())

    def open(
        self,
        parameters: Sequence[tuple[str, int]] = (),
        optimizer: Optimizer = Optimizer.SGD,
        private_bytes: int = 0,
        own_private: bool = False,
    ) -> Session:
        """Open the state: `parameters` are names and numbers of float32 elements.

        `own_private`: private bytes never come from another rank (HF_PRIVATE_OWN).
        """
        return Session(self, parameters, optimizer, private_bytes, own_private)

    def early_group(self, ranks: Sequence[int], name: str) -> Group:
        """Open a group for what a program does before it has a session."""
        array = (_I32 * len(ranks))(*ranks)
        handle = c.c_void_p()
        check(
            lib.hf_early_group_open(self.handle, array, len(ranks), name.encode(), c.byref(handle))
        )
        return Group(handle, owned=True)


class Session:
    """A state that outlives its process; one thread calls it."""

    def __init__(
        self,
        worker: Worker,
        parameters: Sequence[tuple[str, int]],
        optimizer: Optimizer,
        private_bytes: int,
        own_private: bool,
    ) -> None:
        """Wait for the rank and open the state as its predecessor left it."""
        array = (_Parameter * len(parameters))(
            *(_Parameter(name.encode(), elements) for name, elements in parameters)
        )
        layout = _Layout(array, len(parameters), int(optimizer), int(own_private), private_bytes)
        self._worker = worker  # The worker must outlive its session.
        self._handle = c.c_void_p()
        worker.identity()  # The part that may wait long.
        check(lib.hf_open(worker.handle, c.byref(layout), c.byref(self._handle)))
        self._world = Group(c.c_void_p(lib.hf_world(self._handle)), owned=False)

    @property
    def handle(self) -> int:
        """The hf_session*."""
        if not self._handle.value:
            raise UserError("this session was closed")
        return self._handle.value

    def close(self) -> None:
        """Unmap the state; every view of it is invalid afterwards."""
        if self._handle.value:
            lib.hf_close(self._handle)
            self._handle.value = None

    @property
    def fresh(self) -> bool:
        """Whether there is no version yet: version 0 is to be filled before join()."""
        return bool(lib.hf_fresh(self.handle))

    @property
    def version(self) -> int:
        """The committed version; NO_VERSION if fresh."""
        return int(lib.hf_version(self.handle))

    @property
    def generation(self) -> int:
        """The generation of the group; 0 before the first."""
        return int(lib.hf_generation(self.handle))

    @property
    def marked(self) -> bool:
        """Whether the generation has ended, so that the step under way will be void."""
        return bool(lib.hf_marked(self.handle))

    @property
    def position(self) -> Position:
        """Where the committed version stands."""
        p = lib.hf_position_of(self.handle)
        return Position(p.epoch, p.index, p.samples)

    @property
    def world(self) -> Group:
        """The group of all ranks."""
        return self._world

    def group(self, ranks: Sequence[int], name: str) -> Group:
        """Open a group of some ranks; `name` is the same in all members."""
        array = (_I32 * len(ranks))(*ranks)
        handle = c.c_void_p()
        check(lib.hf_group_open(self.handle, array, len(ranks), name.encode(), c.byref(handle)))
        return Group(handle, owned=True)

    def parameter(self, i: int) -> memoryview[float]:
        """Return parameter `i`, float32."""
        p, n = c.c_void_p(), _U64()
        check(lib.hf_parameter_of(self.handle, i, c.byref(p), c.byref(n)))
        return _floats(p, n.value)

    def gradient(self, i: int) -> memoryview[float]:
        """Return the gradient of parameter `i`, float32."""
        p, n = c.c_void_p(), _U64()
        check(lib.hf_gradient_of(self.handle, i, c.byref(p), c.byref(n)))
        return _floats(p, n.value)

    def moment(self, k: int, i: int) -> memoryview[float]:
        """Return the `k`-th moment of parameter `i`, float32."""
        p, n = c.c_void_p(), _U64()
        check(lib.hf_moment_of(self.handle, k, i, c.byref(p), c.byref(n)))
        return _floats(p, n.value)

    def gradients(self) -> memoryview[float]:
        """Return all gradients with their padding: what reduce() counts in."""
        p, n = c.c_void_p(), _U64()
        check(lib.hf_gradients(self.handle, c.byref(p), c.byref(n)))
        return _floats(p, n.value)

    def private(self, version: int) -> memoryview[int]:
        """Return the bytes of `version`: version (read only) or version + 1 (to be filled)."""
        p, n = c.c_void_p(), _U64()
        check(lib.hf_private(self.handle, version, c.byref(p), c.byref(n)))
        return _bytes(p, n.value)

    def join(self, position: Position = _START) -> None:
        """Agree with the others on a version and bring this rank's state to it."""
        native = _position(position)
        interruptibly(lambda: check(lib.hf_join(self.handle, c.byref(native))))

    def begin_step(self) -> bool:
        """Begin a step; True: the group was formed anew, restore from private(version)."""
        reformed = c.c_int()
        if self.marked:
            interruptibly(lambda: check(lib.hf_begin_step(self.handle, c.byref(reformed))))
        else:  # At once.
            check(lib.hf_begin_step(self.handle, c.byref(reformed)))
        return bool(reformed.value)

    def reduce(self, offset: int, count: int) -> None:
        """Start the sum of gradients()[offset : offset + count] over all ranks."""
        check(lib.hf_reduce(self.handle, offset, count))

    def end_step(self, step: Step) -> bool:
        """End the step; True: it is void, restore and make it again."""
        native = _Step(
            _position(step.position),
            step.loss,
            step.learning_rate,
            step.momentum,
            step.beta1,
            step.beta2,
            step.epsilon,
            step.weight_decay,
            step.update_count,
        )
        is_void = c.c_int()
        check(lib.hf_end_step(self.handle, c.byref(native), c.byref(is_void)))
        return bool(is_void.value)

    def end(self) -> None:
        """Say that the training ended well; wait until that is on record."""
        interruptibly(lambda: check(lib.hf_end(self.handle)))

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


class Work:
    """An operation under way; it keeps its memory alive."""

    def __init__(self, handle: c.c_void_p, *keep: object) -> None:
        """Own the hf_work* and whatever it reads or writes."""
        self._handle = handle
        self._keep = keep

    def poll(self, milliseconds: int = 0) -> Status:
        """Wait for `milliseconds` at most (negative: until complete); Status.PENDING if not yet."""
        return Status(lib.hf_wait(self._handle, milliseconds))

    def wait(self) -> None:
        """Wait until complete, raise what went wrong. Ctrl-C is seen within 0.1 s."""
        while (status := lib.hf_wait(self._handle, _SLICE_MS)) == Status.PENDING:
            pass
        check(status)

    def __del__(self) -> None:
        """Release; an operation that is not complete is waited for."""
        if self._handle.value:
            lib.hf_release(self._handle)
            self._handle.value = None


class Group:
    """Some ranks that do things together.

    Every operation has a `start_` form, which returns Work. Sizes are in bytes where memory is, in
    elements where a DType is given.
    """

    def __init__(self, handle: c.c_void_p, owned: bool) -> None:
        """Hold the hf_group*; `owned`: close it at the end."""
        self._handle = handle
        self._owned = owned

    @property
    def handle(self) -> int:
        """The hf_group*."""
        if not self._handle.value:
            raise UserError("this group was closed")
        return self._handle.value

    def close(self) -> None:
        """End what is under way and let go."""
        if self._owned and self._handle.value:
            lib.hf_group_close(self._handle)
        self._handle.value = None

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return int(lib.hf_group_rank(self.handle))

    @property
    def size(self) -> int:
        """How many ranks it has."""
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
        check(lib.hf_broadcast(self.handle, _address(data), nbytes, root, None))

    def start_broadcast(self, data: Buffer, nbytes: int, root: int) -> Work:
        """Start broadcast()."""
        return self._start("hf_broadcast", (data,), _address(data), nbytes, root)

    def all_gather(self, mine: Buffer, nbytes: int, everyone: Buffer) -> None:
        """Fill `everyone` (size times `nbytes`) with each rank's `mine`, in rank order."""
        check(lib.hf_all_gather(self.handle, _address(mine), nbytes, _address(everyone), None))

    def start_all_gather(self, mine: Buffer, nbytes: int, everyone: Buffer) -> Work:
        """Start all_gather()."""
        return self._start(
            "hf_all_gather", (mine, everyone), _address(mine), nbytes, _address(everyone)
        )

    def all_reduce(self, data: Buffer, count: int, dtype: DType, op: Op = Op.SUM) -> None:
        """Reduce `count` elements in place over all ranks, in rank order."""
        check(lib.hf_all_reduce(self.handle, _address(data), count, dtype, op, None))

    def start_all_reduce(self, data: Buffer, count: int, dtype: DType, op: Op = Op.SUM) -> Work:
        """Start all_reduce()."""
        return self._start("hf_all_reduce", (data,), _address(data), count, dtype, op)

    def reduce_scatter(
        self, everyone: Buffer, mine: Buffer, count: int, dtype: DType, op: Op = Op.SUM
    ) -> None:
        """Reduce `everyone` (size times `count`); `mine` gets this rank's block (`count`)."""
        check(
            lib.hf_reduce_scatter(
                self.handle, _address(everyone), _address(mine), count, dtype, op, None
            )
        )

    def start_reduce_scatter(
        self, everyone: Buffer, mine: Buffer, count: int, dtype: DType, op: Op = Op.SUM
    ) -> Work:
        """Start reduce_scatter()."""
        return self._start(
            "hf_reduce_scatter",
            (everyone, mine),
            _address(everyone),
            _address(mine),
            count,
            dtype,
            op,
        )

    def all_to_all(
        self, send: Buffer, send_bytes: Sequence[int], receive: Buffer, receive_bytes: Sequence[int]
    ) -> None:
        """Send block i of `send` to rank i; blocks lie one after another, in rank order."""
        check(
            lib.hf_all_to_all(
                self.handle,
                _address(send),
                (_U64 * len(send_bytes))(*send_bytes),
                _address(receive),
                (_U64 * len(receive_bytes))(*receive_bytes),
                0,
                None,
            )
        )

    def start_all_to_all(
        self, send: Buffer, send_bytes: Sequence[int], receive: Buffer, receive_bytes: Sequence[int]
    ) -> Work:
        """Start all_to_all()."""
        return self._start(
            "hf_all_to_all",
            (send, receive),
            _address(send),
            (_U64 * len(send_bytes))(*send_bytes),
            _address(receive),
            (_U64 * len(receive_bytes))(*receive_bytes),
            0,
        )

    def send(self, data: Buffer, nbytes: int, to: int) -> None:
        """Send to a rank; waits for its receive()."""
        check(lib.hf_send(self.handle, _address(data), nbytes, to, None))

    def start_send(self, data: Buffer, nbytes: int, to: int) -> Work:
        """Start send()."""
        return self._start("hf_send", (data,), _address(data), nbytes, to)

    def receive(self, data: Buffer, nbytes: int, source: int) -> None:
        """Receive what rank `source` sends."""
        check(lib.hf_receive(self.handle, _address(data), nbytes, source, None))

    def start_receive(self, data: Buffer, nbytes: int, source: int) -> Work:
        """Start receive()."""
        return self._start("hf_receive", (data,), _address(data), nbytes, source)
