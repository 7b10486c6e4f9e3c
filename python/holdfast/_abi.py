"""Bind include/holdfast/c.h by ctypes: its types, its functions, and how errors are raised."""

from __future__ import annotations

import ctypes as c
import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

from holdfast._errors import Error, LeftError, MarkedError, PeerError, UserError, WorldError

if not TYPE_CHECKING and sys.platform != "linux":  # The first of our modules that is imported.
    _name = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "another system")
    raise ImportError(
        f"Holdfast runs on Linux; this is {_name} ({sys.platform}). Use a Linux machine, a "
        "container (examples/docker) or, on Windows, WSL 2"
    )

ABI_VERSION: Final = 4
NO_VERSION: Final = 2**64 - 1
ANY_VERSION: Final = 2**64 - 1  # For hf_kv_set(): whichever version the key is at.
_LIBRARY: Final = "libholdfast.so"


class Status(enum.IntEnum):
    """How a call ended (hf_status in c.h)."""

    OK = 0
    USER = 1  # The program or its settings have to change.
    PEER = 2  # Another process of the job does not do the same.
    WORLD = 3  # A disk, a host or the scheduler failed, or the job was ended.
    ABORTED = 4  # A fault ended the generation before the operation was complete.
    LEFT = 5  # Another rank has ended its training.
    MISMATCH = 6  # The ranks asked for different things; no data was exchanged.
    PENDING = 7  # Not yet complete.


class Optimizer(enum.IntEnum):
    """The rule by which a Session with parameters updates them."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAMW = 3


class DType(enum.IntEnum):
    """The type of the elements of a collective."""

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
    """How a collective combines elements, in rank order."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AND = 4  # The three bit operations take whole numbers and bool.
    OR = 5
    XOR = 6
    AVERAGE = 7  # The sum, divided by the number of ranks; floats only.


class CPlace(c.Structure):
    _fields_ = [
        ("rank", c.c_int32),
        ("world_size", c.c_int32),
        ("run_id", c.c_uint64),
        ("attempt", c.c_uint64),
        ("node_id", c.c_char_p),
        ("directory", c.c_char_p),
        ("job", c.c_char_p),
    ]


class CHost(c.Structure):
    _fields_ = [("pid", c.c_int64), ("node_id", c.c_char * 256), ("host", c.c_char * 256)]


class CParameter(c.Structure):
    _fields_ = [("name", c.c_char_p), ("elements", c.c_uint64)]


class CLayout(c.Structure):
    _fields_ = [
        ("parameters", c.POINTER(CParameter)),
        ("parameter_count", c.c_uint64),
        ("optimizer", c.c_uint32),
        ("flags", c.c_uint32),
        ("private_bytes", c.c_uint64),
        ("common_bytes", c.c_uint64),
    ]


class CPosition(c.Structure):
    _fields_ = [("epoch", c.c_uint64), ("index", c.c_uint64), ("samples", c.c_uint64)]


class CRange(c.Structure):
    _fields_ = [("offset", c.c_uint64), ("bytes", c.c_uint64)]


class CReplica(c.Structure):
    _fields_ = [("name", c.c_char_p), ("offset", c.c_uint64), ("bytes", c.c_uint64)]


class CStep(c.Structure):
    _fields_ = [
        ("position", CPosition),
        ("loss", c.c_double),
        ("learning_rate", c.c_double),
        ("momentum", c.c_double),
        ("beta1", c.c_double),
        ("beta2", c.c_double),
        ("epsilon", c.c_double),
        ("weight_decay", c.c_double),
        ("update_count", c.c_uint64),
        ("used", c.POINTER(CRange)),
        ("used_count", c.c_uint64),
    ]


class CTable(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("values", c.c_uint32),
        ("dtype", c.c_uint32),
        ("rule", c.c_uint32),
        ("mindspore", c.c_uint32),
        ("nesterov", c.c_uint32),
        ("initial", c.c_uint32),
        ("initial_a", c.c_double),
        ("initial_b", c.c_double),
        ("seed", c.c_uint64),
        ("momentum", c.c_double),
        ("beta1", c.c_double),
        ("beta2", c.c_double),
        ("epsilon", c.c_double),
        ("l1", c.c_double),
        ("l2", c.c_double),
        ("initial_accumulator", c.c_double),
    ]


Flip = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint64, c.c_uint64, c.c_uint8)  # hf_flip.
P = c.c_void_p
PP = c.POINTER(c.c_void_p)
U64 = c.c_uint64
I32 = c.c_int32
U32 = c.c_uint32
# Function: (result, arguments). c_int: an hf_status, or yes or no. None: no result.
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "hf_abi_version": (c.c_uint32, []),
    "hf_last_error": (c.c_char_p, []),
    "hf_set_tls": (c.c_int, [c.c_char_p, P, P]),
    "hf_start": (c.c_int, [PP]),
    "hf_stop": (None, [P]),
    "hf_is_solo": (c.c_int, [P]),
    "hf_waits_spare": (c.c_int, [P]),
    "hf_bound_rank": (I32, [P]),
    "hf_identity": (c.c_int, [P, c.POINTER(CPlace)]),
    "hf_local_rank": (c.c_int, [P, c.POINTER(I32)]),
    "hf_hosts": (c.c_int, [P, P, c.POINTER(CHost)]),
    "hf_fail": (c.c_int, [P, c.c_char_p]),
    "hf_kv_put": (c.c_int, [P, c.c_char_p, c.c_char_p, U64]),
    "hf_kv_get": (
        c.c_int,
        [P, c.POINTER(c.c_char_p), U64, c.c_int64, c.POINTER(U64), PP, c.POINTER(U64)],
    ),
    "hf_kv_set": (
        c.c_int,
        [P, c.c_char_p, c.c_char_p, U64, U64, c.POINTER(c.c_int), c.POINTER(U64)],
    ),
    "hf_kv_read": (
        c.c_int,
        [P, c.c_char_p, U64, c.c_int64, PP, c.POINTER(U64), c.POINTER(U64)],
    ),
    "hf_prepare": (c.c_int, [P, c.POINTER(CLayout)]),
    "hf_open": (c.c_int, [P, c.POINTER(CLayout), PP]),
    "hf_close": (None, [P]),
    "hf_fresh": (c.c_int, [P]),
    "hf_version": (U64, [P]),
    "hf_generation": (U64, [P]),
    "hf_position_of": (CPosition, [P]),
    "hf_marked": (c.c_int, [P]),
    "hf_parameter_of": (c.c_int, [P, U64, PP, c.POINTER(U64)]),
    "hf_gradient_of": (c.c_int, [P, U64, PP, c.POINTER(U64)]),
    "hf_moment_of": (c.c_int, [P, c.c_uint32, U64, PP, c.POINTER(U64)]),
    "hf_gradients": (c.c_int, [P, PP, c.POINTER(U64)]),
    "hf_private": (c.c_int, [P, U64, PP, c.POINTER(U64)]),
    "hf_take": (c.c_int, [P, c.POINTER(CRange)]),
    "hf_copy": (None, [U64, PP, PP, c.POINTER(U64)]),
    "hf_digest": (None, [U64, PP, c.POINTER(U64), c.POINTER(U64)]),
    "hf_join": (c.c_int, [P, c.POINTER(CPosition)]),
    "hf_meet": (c.c_int, [P, c.POINTER(CPosition), c.POINTER(c.c_int)]),
    "hf_begin_step": (c.c_int, [P, c.POINTER(c.c_int)]),
    "hf_replicas": (c.c_int, [P, c.POINTER(CReplica), U64, U64]),
    "hf_flip_by": (None, [P, Flip, P]),
    "hf_comparison_due": (c.c_int, [P, c.c_int]),
    "hf_compare_replicas": (c.c_int, [P, c.c_char_p]),
    "hf_guard": (U64, [P, U64]),
    "hf_unguard": (None, [U64]),
    "hf_memory_lost": (U64, []),
    "hf_pages_lost": (U64, []),
    "hf_uses_committed": (None, [P]),
    "hf_sample": (c.c_int, [P]),
    "hf_note": (None, [P, c.c_char_p, P, U64]),
    "hf_compare_exchanges": (None, [P, c.c_int]),
    "hf_rehearses": (c.c_int, [P]),
    "hf_rehearsal_differs": (None, [P, c.c_char_p]),
    "hf_rehearsal_skips": (None, [P, c.c_char_p]),
    "hf_reduce": (c.c_int, [P, U64, U64]),
    "hf_end_step": (c.c_int, [P, c.POINTER(CStep), c.POINTER(c.c_int)]),
    "hf_end": (c.c_int, [P]),
    "hf_end_on_exit": (None, [c.c_int, P]),
    "hf_servers": (I32, [P]),
    "hf_table_define": (c.c_int, [P, c.POINTER(CTable), c.POINTER(U64)]),
    "hf_table_set": (c.c_int, [P, U64, c.c_double, c.c_double]),
    "hf_table_evict": (c.c_int, [P, U64, U64]),
    "hf_table_pull": (c.c_int, [P, U64, P, U64, P]),
    "hf_table_push": (c.c_int, [P, U64, P, U64, P]),
    "hf_table_assign": (c.c_int, [P, U64, P, U64, P]),
    "hf_tables_load": (c.c_int, [P, c.c_char_p]),
    "hf_tables_save": (c.c_int, [P, c.c_char_p]),
    "hf_register": (c.c_int, [P, P, U64, PP]),
    "hf_memory_data": (P, [P]),
    "hf_memory_file": (c.c_int, [P]),
    "hf_unregister": (None, [P]),
    "hf_world": (P, [P]),
    "hf_group_open": (c.c_int, [P, c.POINTER(I32), U64, c.c_char_p, PP]),
    "hf_early_group_open": (c.c_int, [P, c.POINTER(I32), U64, c.c_char_p, PP]),
    "hf_group_close": (None, [P]),
    "hf_group_rank": (I32, [P]),
    "hf_group_size": (I32, [P]),
    "hf_wait": (c.c_int, [P, c.c_int64]),
    "hf_release": (None, [P]),
    "hf_barrier": (c.c_int, [P, PP]),
    "hf_broadcast": (c.c_int, [P, P, U64, I32, PP]),
    "hf_all_gather": (c.c_int, [P, P, U64, P, PP]),
    "hf_all_reduce": (c.c_int, [P, P, U64, c.c_int, c.c_int, PP]),
    "hf_all_reduce_into": (c.c_int, [P, P, P, U64, c.c_int, c.c_int, PP]),
    "hf_reduce_scatter": (c.c_int, [P, P, P, U64, c.c_int, c.c_int, PP]),
    "hf_all_to_all": (c.c_int, [P, P, c.POINTER(U64), P, c.POINTER(U64), U64, PP]),
    "hf_send_tagged": (c.c_int, [P, P, U64, I32, U32, PP]),
    "hf_receive_tagged": (c.c_int, [P, P, U64, I32, U32, PP]),
}


def library_path() -> Path:
    """Return the path of libholdfast.so, which lies beside this package."""
    return Path(__file__).resolve().parent / "lib" / _LIBRARY


def _load() -> c.CDLL:
    path = library_path()
    if not path.exists():
        raise ImportError(
            f"{path} is missing; install Holdfast with `pip install .`, or put the `python` folder "
            "of a build tree on PYTHONPATH (target python_package)"
        )
    try:
        loaded = c.CDLL(str(path))  # CDLL, not PyDLL: the GIL is released during every call.
    except OSError as error:
        raise ImportError(
            f"{path} can not be loaded ({error}); it needs a machine of the kind that it was built "
            "on, and unless it is of `tools/wheel`, SQLite (Debian's package libsqlite3-0): "
            "`pip install .` there"
        ) from error
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
    Status.LEFT: LeftError,
    Status.MISMATCH: PeerError,
}


def last_error() -> str:
    """Return the error sentence of this thread's last call that failed."""
    text: bytes = lib.hf_last_error()
    return text.decode("utf-8", "replace")


def check(status: int) -> None:
    """Raise the error that `status` stands for, if any."""
    if status != Status.OK:
        raise _ERRORS.get(status, Error)(last_error())


Buffer = Union[int, bytes, bytearray, memoryview, Any]


def address(data: Buffer) -> int:
    """Return the address of `data`, which is an address already or an object with a buffer."""
    if isinstance(data, int):
        return data
    if isinstance(data, bytes):
        return c.cast(c.c_char_p(data), c.c_void_p).value or 0
    view = memoryview(data)
    if view.nbytes == 0:
        return 0
    return c.addressof(c.c_char.from_buffer(view))


def bytes_at(pointer: c.c_void_p, count: int) -> memoryview[int]:
    """Return `count` bytes at `pointer` as a writable view."""
    array = (c.c_uint8 * count).from_address(pointer.value or 0) if count else (c.c_uint8 * 0)()
    return memoryview(array).cast("B")


def floats_at(pointer: c.c_void_p, count: int) -> memoryview[float]:
    """Return `count` float32 at `pointer` as a writable view."""
    return bytes_at(pointer, 4 * count).cast("f")
