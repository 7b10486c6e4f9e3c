"""What the body of a program's loop leaves in its variables, as part of what a step depends on.

`running_loss += loss.item()` adds to what the step before has left, `losses.append(...)` too. So
such values are in the image of each step; a step that is made again begins with them, and so does a
process that replaces another. `print(epoch, loss.item())` after a pass reads what only a step sets:
a process that has no step of that pass to make is given what the last one left there.

Small values alone: of what the body sets, and of what it changes in place.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from holdfast.torch._bodies import NO_BODY, Body, body_of
from holdfast.torch._forms import (
    NOTHING,
    PLAIN,
    Room,
    attributes_of,
    brought_to,
    can_change,
    fits,
    form_of,
)
from holdfast.torch._frames import callers, set_variables, variables_of
from holdfast.torch._records import Records

ROOM: Final = 1 << 20  # Bytes of an image that they take at most.
_LIMIT: Final = 1 << 18  # Of what a body sets or changes; there are two records of it.
_LIMIT_OF_OTHERS: Final = 1 << 15
_SMALL: Final = Room(1 << 12, 1 << 9)
_FILLED: Final = Room(1 << 12, 1 << 13)
_CARRIED: Final = Room(1 << 17, 1 << 9)
_DEPTH: Final = 2  # Objects within objects.
_HERE: Final = str(Path(__file__).parent)

_Path = tuple[str, ...]  # A variable, and attributes of the program's objects.


class _Record(NamedTuple):
    """What a loop had in its variables."""

    at: int  # Where in its function it stands.
    forms: dict[_Path, bytes]  # Pickled.
    changed: frozenset[_Path]  # By steps of the pass.


_NO_RECORD: Final = pickle.dumps(_Record(-1, {}, frozenset()))


class Variables:
    """Those of the function, or the module, that makes the steps. Not thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know none. `say`: where warnings go."""
        self.not_ours: set[int] = set()  # Ids of objects that are looked after elsewhere.
        self._of = ("", "", 0)
        self._under_way = _NO_RECORD  # After the last step.
        self._ended = _NO_RECORD  # After the last pass.
        self._passes = Records(
            say,
            "what the passes over data leave in variables is {limit}; a process that replaces "
            "another finds in them what the last pass has left, for each",
        )
        # Of the step under way: where it stands, what it may change, how that was and is.
        self._loop = self._of
        self._at = -1
        self._body = NO_BODY
        self._before: dict[_Path, tuple[Any, Any]] = {}  # Values, and their forms.
        self._after: dict[_Path, Any] = {}
        self._changed: frozenset[_Path] = frozenset()

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self._of, self._under_way, self._ended

    def restore(self, objects: Any) -> None:
        """Go on from an image."""
        self._of, self._under_way, self._ended = objects
        self._changed = pickle.loads(self._under_way).changed

    def open(self, path: Path, version: int) -> None:
        """Keep what each pass leaves in a file; `version`: with which this process begins."""
        self._passes.open(path, version)

    # ---- Steps ----------------------------------------------------------------------------------

    def hold(self, frame: FrameType | None, begins: bool) -> None:
        """Look at what the step that begins may change. `begins`: so does a pass."""
        self._at, self._body, self._before, self._after = -1, NO_BODY, {}, {}
        loop = _loop_around(frame)
        if loop is None:
            return
        if begins or self._of != _identity(loop):
            self._changed = frozenset()
        self._loop, self._at = _identity(loop), loop.f_lasti
        self._body = body_of(loop.f_code, loop.f_lasti)
        there = _values_of(loop, self._body)
        self._before = self._watched(there)

    def see(self, frame: FrameType | None) -> None:
        """Look at what the step's body has left; what the data's source does then is not its."""
        loop = _loop_around(frame)
        if loop is None or _identity(loop) != self._loop or self._at < 0:
            self._after = {}
            return
        there = _values_of(loop, self._body)
        self._after = {path: form for path, (_, form) in self._watched(there).items()}

    def put_back(self, frame: FrameType | None) -> None:
        """Have all that the body has changed as it was at hold(): the step is void."""
        loop = _loop_around(frame)
        if loop is None or _identity(loop) != self._loop:
            return
        there, given = _values_of(loop, self._body), {}
        for path, (value, form) in self._before.items():
            if form is not NOTHING and form != self._after.get(path, NOTHING):
                value = brought_to(form, value) if fits(form, value) else value
                _set_attribute(there, path, value)
            if path[0] in self._body.sets and len(path) == 1:
                given[path[0]] = value
        _set_values(loop, given, self._body)

    def note(self, frame: FrameType | None, ends: bool) -> None:
        """Have the next image hold what see() saw. `ends`: with the step ends its pass."""
        if self._at < 0:
            return
        self._of = self._loop  # Which restore() may have changed since.
        before, after = self._before, self._after
        self._changed |= {
            path for path, form in after.items() if path not in before or before[path][1] != form
        }
        forms = _within(_LIMIT, {path: after[path] for path in self._changed & after.keys()})
        self._under_way = pickle.dumps(_Record(self._at, forms, self._changed))
        if ends and (loop := _loop_around(frame)) and _identity(loop) == self._loop:
            sets = self._body.sets
            others: dict[_Path, Any] = {}
            for name, value in _values_of(loop, self._body).items():
                if (name,) not in forms and not name.startswith("_"):
                    others[name,] = form_of(value, _SMALL)
            first = {path: others.pop(path) for path in list(others) if path[0] in sets}
            forms = {**forms, **_within(_LIMIT_OF_OTHERS, {**first, **others})}
            changed = self._changed | first.keys()
            self._ended = pickle.dumps(_Record(self._at, forms, changed))

    def end_pass(self, number: int, version: int) -> None:
        """Take note that pass `number` has ended with the step that made `version`."""
        self._passes.add(number, version - 1, self._ended)

    def _watched(self, there: dict[str, Any]) -> dict[_Path, tuple[Any, Any]]:
        """Return what a step may find as the one before has left it, or change, and its form."""
        body = self._body
        found: dict[_Path, tuple[Any, Any]] = {}
        for name in body.carried | body.reads:
            value = there.get(name, NOTHING)
            is_carried = name in body.carried
            if value is NOTHING or (type(value) in PLAIN and not is_carried):
                continue
            room = _FILLED if name in body.fills else _CARRIED if is_carried else _SMALL
            if not self._watch((name,), value, room, found):
                form = form_of(value, room)
                if is_carried or can_change(form):
                    found[name,] = value, form
        return found

    def _watch(
        self, path: _Path, thing: Any, room: Room, found: dict[_Path, tuple[Any, Any]]
    ) -> bool:
        """Find the attributes of an object of the program's own. False: it is none."""
        if id(thing) in self.not_ours:
            return True
        held = attributes_of(thing)
        if held is None:
            return False
        for name, part in held.items():
            at = (*path, name)
            if type(part) in PLAIN:
                found[at] = part, part
                continue
            is_outer = len(path) >= _DEPTH or not self._watch(at, part, room, found)
            if is_outer and (form := form_of(part, room)) is not NOTHING:
                found[at] = part, form
        return True

    # ---- A process that was started again -------------------------------------------------------

    def resume(self, frame: FrameType | None) -> None:
        """Set what the last step of a predecessor has left, where its loop goes on."""
        loop = _loop_around(frame)
        record: _Record = pickle.loads(self._under_way)
        if loop is not None and loop.f_lasti == record.at:
            self._give(loop, record, passed_over=True)

    def resume_ahead(self, frame: FrameType | None) -> None:
        """Do so where the program looks, before its `with state.step()`, whether steps are left."""
        loop = _loop_around(frame)
        record: _Record = pickle.loads(self._under_way)
        if loop is not None and loop.f_lasti < record.at:
            self._give(loop, record, passed_over=True)

    def give_back(
        self, frame: FrameType | None, number: int | None = None, passed_over: bool = True
    ) -> None:
        """Set in the loop around `frame` what is not there, as it was after pass `number`.

        Or after the last one. `passed_over`: also what the steps of the pass, which are not made
        here, would have.
        """
        if loop := _loop_around(frame):
            record: _Record = pickle.loads(self._passes.known.get(number, self._ended))
            self._give(loop, record, passed_over and loop.f_lasti == record.at)

    def _give(self, loop: FrameType, record: _Record, passed_over: bool) -> None:
        if _identity(loop) != self._of:
            return
        body = body_of(loop.f_code, record.at)
        there, given = _values_of(loop, body), {}
        for path, raw in record.forms.items():
            old = _value_at(there, path)
            is_due = old is NOTHING or (passed_over and path in record.changed)
            if is_due and fits(form := pickle.loads(raw), old):
                value = brought_to(form, old)
                if len(path) == 1 and (old is NOTHING or value is not old):
                    given[path[0]] = value
                _set_attribute(there, path, value)
        _set_values(loop, given, body)


def _value_at(there: dict[str, Any], path: _Path) -> Any:
    value = there.get(path[0], NOTHING)
    for name in path[1:]:
        value = (attributes_of(value) or {}).get(name, NOTHING)
    return value


def _set_attribute(there: dict[str, Any], path: _Path, value: Any) -> None:
    """Set what `path` names, if that is an attribute of an object that is there."""
    if len(path) > 1:
        held = attributes_of(_value_at(there, path[:-1]))
        if held is not None:
            held[path[-1]] = value


def _within(limit: int, forms: dict[_Path, Any]) -> dict[_Path, bytes]:
    """Return forms, pickled, as many as there is room for."""
    found = {}
    for path, form in forms.items():
        raw = b"" if form is NOTHING else pickle.dumps(form)
        if 0 < len(raw) <= limit:
            limit -= len(raw)
            found[path] = raw
    return found


def _loop_around(frame: FrameType | None) -> FrameType | None:
    """Return who makes the steps: no part of Holdfast, no progress bar's generator."""
    for f in callers(frame):
        if (
            not f.f_code.co_filename.startswith((_HERE, contextlib.__file__))
            and not f.f_code.co_flags & inspect.CO_GENERATOR
        ):
            return f
    return None


def _identity(frame: FrameType) -> tuple[str, str, int]:
    code = frame.f_code
    return code.co_filename, code.co_name, code.co_firstlineno


def _values_of(loop: FrameType, body: Body) -> dict[str, Any]:
    """Return a function's variables, and those of its module that the body names."""
    outside = loop.f_globals
    found = {name: outside[name] for name in body.of_module if name in outside}
    found.update(variables_of(loop))
    return found


def _set_values(loop: FrameType, values: dict[str, Any], body: Body) -> None:
    own = {name: value for name, value in values.items() if name not in body.of_module}
    if own:
        set_variables(loop, own)
    for name in values.keys() - own.keys():
        loop.f_globals[name] = values[name]
