"""Keep the contents of a program's callbacks: data in attributes, or state_dict(); parameters too.

For a callback with `state_dict` and `load_state_dict`, that dict is kept. Of any other callback,
attributes that are data are kept: numbers, texts, lists, dicts, arrays, tensors.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from holdfast._vars import Places, into
from holdfast.mindspore import _bulk
from holdfast.mindspore._data import NoDataError, dumps

_PLAIN: Final = (bool, int, float, str, bytes, type(None))
# Sizes in bytes. Above _MANY_BYTES, an attribute goes to a file instead of into every step.
_MANY_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 256 << 10
_MOST_TOGETHER: Final = 768 << 10
_STATE_DICT: Final = "state_dict"  # Marks keys of state_dict(): see of_state_dict().
# Callbacks of MindSpore, and ours, that do not change parameters.
_QUIET: Final = frozenset({"CheckLoss", "LossMonitor", "ModelCheckpoint", "TimeMonitor"})
_REPAIRS: Final = frozenset({"TFTRegister", "TrainFaultTolerance"})
_WRITERS: Final = frozenset(
    {"BackupAndRestore", "ModelCheckpoint", "OnRequestExit", "SummaryCollector"}
)
_SIMPLE: Final = _QUIET | _REPAIRS  # Only their numbers and texts matter.

Kept = dict[Any, Any]  # The kept contents of a thing, by attribute name.


def of_mindspore(callback: Any) -> bool:
    """Return whether a callback is MindSpore's own, or Holdfast's."""
    return type(callback).__module__.startswith(("mindspore.", "holdfast."))


def _is(callback: Any, names: frozenset[str]) -> bool:
    return of_mindspore(callback) and type(callback).__name__ in names


def leaves_parameters(callback: Any) -> bool:
    """Return whether a callback is known to change no parameter."""
    return _is(callback, _QUIET)


def repairs(callback: Any) -> bool:
    """Return whether a callback is the one by which MindSpore makes repairs."""
    return _is(callback, _REPAIRS)


def _is_writer(kind: type) -> bool:
    return kind.__name__ in _WRITERS and kind.__module__.startswith("mindspore.")


def writes(callback: Any) -> bool:
    """Return whether a callback is, or extends, one of MindSpore's that write files."""
    return any(_is_writer(kind) for kind in type(callback).__mro__)


def keep_from_writing(callbacks: Sequence[Any]) -> None:
    """Let MindSpore's callbacks that write files do nothing, in a process that only rehearses.

    What a program's own class adds to one of them is done.
    """
    kinds = {kind for callback in callbacks for kind in type(callback).__mro__ if _is_writer(kind)}
    for kind in kinds:
        for prefix in ("", "on_train_"):
            for when in ("begin", "epoch_begin", "epoch_end", "step_begin", "step_end", "end"):
                if prefix + when in vars(kind):
                    setattr(kind, prefix + when, _does_nothing)


def _does_nothing(*_: Any) -> None:
    pass


# ---- Attributes ----------------------------------------------------------------------------------


def has_state_dict(thing: Any) -> bool:
    """Return whether a thing itself says, by state_dict(), what is kept of it."""
    return not of_mindspore(thing) and all(
        callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict")
    )


def of_state_dict(name: Any) -> tuple[str, Any]:
    """Return the key that stands for `name` in the result of state_dict()."""
    return _STATE_DICT, name


def all_attributes(callbacks: Sequence[Any], say_once: Callable[[str], None]) -> list[Kept]:
    """Return attributes() of each callback, for all together within _MOST_TOGETHER bytes."""
    room = [_MOST_TOGETHER]
    return [attributes(callback, say_once, room) for callback in callbacks]


def attributes(
    callback: Any,
    say_once: Callable[[str], None],
    room: list[int] | None = None,
    most: int | None = None,
) -> Kept:
    """Return, pickled, the attributes of a callback that a successor gets back.

    `room`: the bytes left for all attributes; it is reduced by those used. `most`: the bytes that
    one attribute may have; if given, nothing goes to a file.
    """
    found: Kept = dict(vars(callback))
    if has_state_dict(callback):
        found = {of_state_dict(n): value for n, value in callback.state_dict().items()}
    if _is(callback, _SIMPLE):
        return {n: dumps(value) for n, value in found.items() if isinstance(value, _PLAIN)}
    left, bulk = room or [_MOST_TOGETHER], _bulk.current
    kept: Kept = {}
    for name, value in found.items():
        try:
            packed = dumps(value, bulk.others if bulk else None)
        except NoDataError as error:
            if _is_program_s(error.kind) and not of_mindspore(callback):
                say_once(_no_data(callback, name, error.kind))
            continue
        if bulk and most is None and len(packed) > _MANY_BYTES:
            kept[name] = bulk.take((id(callback), name), packed)
        elif len(packed) <= min(_MOST_BYTES if most is None else most, left[0]):
            left[0] -= len(packed)
            kept[name] = packed
        if kept.get(name) is None:
            kept.pop(name, None)
            say_once(
                f"attribute '{name}' of callback {type(callback).__name__} has grown beyond what "
                f"is kept of such data ({_bulk.MOST_BYTES >> 20} MiB together) and is not kept any "
                "more: a process that replaces another has what the program gives it at its start; "
                "what is larger belongs into files"
            )
    return kept


def _is_program_s(kind: type) -> bool:
    """Return whether a class and its bases are the program's own, such as an average meter."""
    rooms = {base.__module__.partition(".")[0] for base in kind.__mro__ if base is not object}
    return rooms.isdisjoint(sys.stdlib_module_names | {"holdfast", "mindspore", "numpy"})


def _no_data(callback: Any, name: Any, kind: type) -> str:
    whose = type(callback).__name__
    return (
        f"attribute '{name}' of callback {whose} holds an object of class {kind.__name__}, which "
        "is not kept: a process that replaces another has what the program gives it at its start; "
        f"give {whose} state_dict() and load_state_dict()"
    )


def give_back(callback: Any, kept: Kept) -> None:
    """Set the attributes from attributes(). Lists and the like are changed in place."""
    found = {name: _as_it_was(packed) for name, packed in kept.items()}
    whole = {name[1]: value for name, value in found.items() if type(name) is tuple}
    if whole:
        callback.load_state_dict(whole)
        return
    places = Places()
    for name, value in found.items():
        now = vars(callback).get(name)
        if type(now) is defaultdict and type(value) is dict:
            value = defaultdict(now.default_factory, value)
        with contextlib.suppress(RecursionError):  # The value holds itself.
            value = into(now, value, places)
        if value is not now:
            setattr(callback, name, value)


def _as_it_was(packed: Any) -> Any:
    if isinstance(packed, _bulk.Form):
        assert _bulk.current is not None
        packed = _bulk.current.read(packed)
    return pickle.loads(packed) if isinstance(packed, bytes) else packed


# ---- Parameters ----------------------------------------------------------------------------------


def _held(value: Any) -> Iterator[Any]:
    from mindspore import Parameter
    from mindspore.nn import Cell

    if isinstance(value, Parameter):
        yield value
    elif isinstance(value, Cell):
        yield from value.get_parameters()
    elif isinstance(value, (list, tuple)) and len(value) <= 1 << 16:
        yield from (part for part in value if isinstance(part, Parameter))
    elif type(value) is dict:
        yield from _held(list(value.values()))


def parameters(callbacks: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return parameters in attributes of callbacks, such as averages, that are not in `known`."""
    own = [callback for callback in callbacks if not of_mindspore(callback)]
    return held_by([value for callback in own for value in vars(callback).values()], known)


def held_by(values: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return parameters that cells, lists and the like hold, each once, except `known`."""
    seen, found = {id(p) for p in known}, []
    for value in values:
        for parameter in _held(value):
            if id(parameter) not in seen and not parameter.has_init:
                seen.add(id(parameter))
                found.append(parameter)
    return found
