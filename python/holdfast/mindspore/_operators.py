"""Make MindSpore's operators for Holdfast's collectives, in libholdfast_mindspore.so."""

from __future__ import annotations

import contextlib
import ctypes as c
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast import _abi
from holdfast._abi import Op, Status
from holdfast._errors import UserError

_LIBRARY: Final = Path(__file__).resolve().parent.parent / "lib" / "libholdfast_mindspore.so"
REDUCE, GATHER, SCATTER, BROADCAST = range(4)
_TEXT_ROOM: Final = 1024
_NUMBERS: Final = 256  # Of operators of one kind in one group; after that they begin again.
_OF_A_GRAPH: Final = 1000  # Added to numbers of operators that a graph's text makes.


def _load() -> c.CDLL:
    if not _LIBRARY.exists():
        raise ImportError(f"{_LIBRARY} is missing; install Holdfast anew with `pip install .`")
    assert _abi.lib  # This library needs libholdfast.so to be loaded.
    lib = c.CDLL(str(_LIBRARY))
    lib.hfg_describe.argtypes = [c.c_uint32, *[c.c_int32] * 5, c.c_float, *[c.c_int32] * 4]
    lib.hfg_group.argtypes = [c.c_uint32, c.c_void_p]
    lib.hfg_on_training.argtypes = lib.hfg_on_echo.argtypes = [c.CFUNCTYPE(None)]
    lib.hfg_status.argtypes = [c.c_char_p, c.c_uint64]
    lib.hfg_status.restype = c.c_int32
    lib.hfg_count.restype = c.c_uint64
    return lib


_lib: Final = _load()
_indices: Final[dict[tuple[Any, ...], int]] = {}


def most_groups() -> int:
    """Return the largest number of groups."""
    return int(_lib.hfg_groups())


def connect(group: int, handle: int | None) -> None:
    """Connect the collectives of a group to an hf_group*; None: they give echoes."""
    _lib.hfg_group(group, handle)


def status() -> tuple[Status, str]:
    """Return the first status since clear() that was not OK, and its error sentence."""
    text = c.create_string_buffer(_TEXT_ROOM)
    return Status(_lib.hfg_status(text, _TEXT_ROOM)), text.value.decode("utf-8", "replace")


def strict(on: bool) -> None:
    """Choose whether a collective that a fault cuts short ends the process.

    It has to where no step would notice it: outside of steps.
    """
    _lib.hfg_strict(on)


_Callback = c.CFUNCTYPE(None)
_kept: list[Any] = []  # Held for good, since C may still call them.


def on_training(function: Callable[[], None] | None) -> None:
    """Have an operator call a function before gradients are exchanged. None: call nothing."""
    _kept.append(_Callback(function) if function else _Callback())
    _lib.hfg_on_training(_kept[-1])


def on_echo(function: Callable[[], None] | None) -> None:
    """Have an operator call a function before it gives an echo. None: call nothing."""
    _kept.append(_Callback(function) if function else _Callback())
    _lib.hfg_on_echo(_kept[-1])


def clear() -> None:
    """Set the status to OK."""
    _lib.hfg_clear()


def count() -> int:
    """Return how many collectives have been made with other ranks so far."""
    return int(_lib.hfg_count())


class Numbers(threading.local):
    """Numbers operators as they are made, equally on all ranks. Each thread counts for itself.

    A successor has run the program's first lines, as all ranks have, and compiles the same graphs.
    But it has not made the operators that callbacks made in steps before it came. So operators that
    are made after the training has begun, outside of graphs, all have number 0. They run in the
    order in which Python calls them.
    """

    def __init__(self) -> None:
        """Begin without any operator."""
        self._made: dict[Any, int] = {}
        self._in_graph: dict[Any, int] | None = None

    def next(self, kind: Any, has_trained: bool) -> int:
        """Return the number of an operator of a kind that is made now."""
        if has_trained and self._in_graph is None:
            return 0
        made = self._made if self._in_graph is None else self._in_graph
        made[kind] = made.get(kind, 0) + 1
        return (made[kind] - 1) % _NUMBERS + (1 if made is self._made else 1 + _OF_A_GRAPH)

    @contextlib.contextmanager
    def of_a_graph(self) -> Iterator[None]:
        """Count separately the operators that a graph's text makes while it is compiled."""
        if _ordered:  # The program may have changed the level since.
            in_one_order()
        before, self._in_graph = self._in_graph, {}
        try:
            yield
        finally:
            self._in_graph = before


def _slot(
    kind: int,
    op: Op,
    group: int,
    root: int,
    size: int,
    number: int,
    factor: float = 1.0,
    training: bool = False,
    place: int = 0,
    backward: bool = False,
) -> int:
    key = (kind, op, group, root, size, factor, training, number, place, backward)
    if key not in _indices:
        if len(_indices) == _lib.hfg_operators():
            raise UserError(
                f"this program has more than {len(_indices)} different collectives; use fewer "
                "groups or roots"
            )
        _indices[key] = len(_indices)
        _lib.hfg_describe(_indices[key], *key)
    return _indices[key]


_ordered = False


def in_one_order() -> None:
    """Have graphs that are compiled from now on run in their compiled order.

    MindSpore's runtime starts operators as they become ready. That order differs between processes,
    and between the first and the second step of a process. MindSpore ties only its own collectives,
    which it knows by name, to the compiled order (LinkControlArrowByCommunicationNode). With memory
    optimization level O1, it ties all operators to that order (LinkControlArrowByExecutionOrder).
    Steps take no longer.
    """
    global _ordered
    from mindspore import context

    _ordered = True
    context._context().set_memory_optimize_level("O1")


# An operator is declared to have a side effect. So the compiler keeps operators in the order of the
# program's text, and keeps an operator whose result only some ranks use. An adjoint takes the
# operator's result as a second input, since its first is often a constant: it must not run earlier.
def _custom(
    slot: int, shapes: Callable[..., Any], types: Callable[..., Any], bprop: Any, into: Any = None
) -> Any:
    from mindspore import ops

    made = ops.Custom.__new__(ops.Custom) if into is None else into
    name = f"{_LIBRARY}:hfg_operator_{slot:04o}"
    ops.Custom.__init__(made, name, shapes, types, "aot", bprop=bprop)
    made.add_prim_attr("side_effect_io", True)
    return made


def _same(*given: Any) -> Any:
    return given if len(given) > 1 else given[0]


def _first(given: Any, after: Any) -> Any:
    return given


def reduce(
    group: int,
    size: int,
    op: Op,
    number: int = 0,
    factor: float = 1.0,
    training: bool = False,
    into: Any = None,
) -> Any:
    """Make the operator that reduces each of its inputs over the group.

    `number`: from Numbers. The operator fails if other ranks run one with another number.
    `factor`: the sum is multiplied by it. `training`: the inputs are gradients. `into`: an
    uninitialised ops.Custom that becomes this operator.
    """
    slot = _slot(REDUCE, op, group, 0, size, number, factor, training)
    bprop = None
    if not training and op is not Op.PRODUCT:
        back = _slot(REDUCE, Op.SUM, group, 0, size, number, backward=True)
        adjoint = _custom(back, _first, _first, None)
        bprop = _backward(adjoint) if op is Op.SUM else _backward_of_one(adjoint)
    return _custom(slot, _same, _same, bprop, into)


def gather(group: int, size: int, place: int, number: int = 0, into: Any = None) -> Any:
    """Make the operator that joins all ranks' inputs. `place`: this rank's index in the group."""
    back = _slot(SCATTER, Op.SUM, group, 0, size, number, place=place, backward=True)
    adjoint = _custom(back, lambda shape, after: _part(shape, size), _first, None)
    slot = _slot(GATHER, Op.SUM, group, 0, size, number)
    return _custom(slot, lambda shape: _whole(shape, size), _same, _backward(adjoint), into)


def scatter(group: int, size: int, place: int, op: Op, number: int = 0, into: Any = None) -> Any:
    """Make the operator that reduces inputs and keeps this rank's part; `place` as in gather()."""
    bprop = None
    if op is Op.SUM:
        back = _slot(GATHER, Op.SUM, group, 0, size, number, backward=True)
        bprop = _backward(_custom(back, lambda shape, after: _whole(shape, size), _first, None))
    slot = _slot(SCATTER, op, group, 0, size, number, place=place)
    return _custom(slot, lambda shape: _part(shape, size), _same, bprop, into)


def _whole(shape: Sequence[int], size: int) -> list[int]:
    return [shape[0] * size, *shape[1:]]


def _part(shape: Sequence[int], size: int) -> list[int]:
    if shape[0] >= 0 and shape[0] % size:
        raise UserError(
            f"ReduceScatter divides the first dimension by the group's size: {shape[0]} is no "
            f"multiple of {size}"
        )
    return [shape[0] // size, *shape[1:]]


# MindSpore's graph compiler reads the source of each `bprop`. No operator can be made in it.
def _backward(adjoint: Any) -> Callable[..., Any]:
    def bprop(x, out, dout):  # type: ignore[no-untyped-def]
        return (adjoint(dout, out),)

    return bprop


def _backward_of_one(adjoint: Any) -> Callable[..., Any]:
    """Return the backward function of MAX and MIN: elements equal to the result get gradients."""
    from mindspore import ops

    equal, cast, type_of = ops.Equal(), ops.Cast(), ops.DType()

    def bprop(x, out, dout):  # type: ignore[no-untyped-def]
        summed = adjoint(dout, out)
        return (summed * cast(equal(x, out), type_of(summed)),)

    return bprop


def broadcast(group: int, size: int, root: int, number: int = 0) -> Any:
    """Make the operator that gives all ranks the root's inputs."""
    return _custom(_slot(BROADCAST, Op.SUM, group, root, size, number), _same, _same, None)
