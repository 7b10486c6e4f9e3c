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
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from holdfast.torch._bodies import Body, body_of, is_in_loop
from holdfast.torch._forms import (
    LIBRARIES,
    NOTHING,
    OURS,
    PLAIN,
    Opaque,
    Room,
    attributes_of,
    brought_to,
    can_be_told,
    fits,
    form_of,
    is_opaque,
    writes_to,
)
from holdfast.torch._frames import callers, offset_of, set_variables, variables_of
from holdfast.torch._globals import body_at, module_of, own_name
from holdfast.torch._mementos import Mementos
from holdfast.torch._records import Records

ROOM: Final = 1 << 20  # Bytes of an image that they take at most.
_LIMIT: Final = 3 << 17  # Of what one body sets or changes, in each of two records.
_LIMIT_OF_OTHERS: Final = 1 << 15
_SMALL: Final = Room(1 << 12, 1 << 9, 1 << 9)
_FILLED: Final = Room(1 << 12, 1 << 9, 1 << 13)
_CARRIED: Final = Room(1 << 17, 1 << 9, 1 << 9)
_DEPTH: Final = 2  # Objects within objects.
_MOST_NODES: Final = 64  # Of a graph that are looked at.
_LASTING: Final = (torch.nn.Module, torch.optim.Optimizer)  # One of which is chosen.

_Path = tuple[str, ...]  # A variable, and attributes of the program's objects.
_Name = tuple[str, str, int]  # Of a function: file, name, line.
_Key = tuple[_Name, int]  # Of a loop: its function, and where it stands in that.


class _Record(NamedTuple):
    """What a loop had in its variables."""

    at: int  # Where in its function it stands.
    forms: dict[_Path, bytes]  # Pickled.
    changed: frozenset[_Path]  # By steps of the pass.
    bound: frozenset[_Path]  # Those of them that are other objects than before.
    given: frozenset[str] = frozenset()  # What a `with` has as the step before had it.


_NONE: Final[frozenset[_Path]] = frozenset()


class _Loop:
    """One that goes through the steps, as long as one of them is under way."""

    def __init__(self, frame: FrameType, not_ours: set[int]) -> None:
        """Look at what the step that begins may change."""
        self.at = offset_of(frame)
        self.key = _name_of(frame), self.at
        self.body = body_at(frame, self.at)
        self._not_ours = not_ours
        there = _values_of(frame, self.body)
        # What else the body sets in some steps alone may be large, and is forms enough.
        read = self.body.needed | self.body.reads
        self._values = {name: there[name] for name in read & there.keys()}
        self._mementos = Mementos(not_ours)
        for value in self._values.values():
            self._mementos.add(value)
        # Forms, and which objects they are of.
        self.before, self._who_before = self._forms(there)
        # Held, so that what the body makes gets no id of theirs; what is large is not.
        small = {path[0] for path, form in self.before.items() if not is_opaque(form)}
        self.held = {name: there[name] for name in small}
        self.after: dict[_Path, Any] = {}
        self._who_after: dict[_Path, int] = {}
        self.rebound: dict[str, Any] = {}  # Variables that have another object now.

    def see(self, frame: FrameType) -> None:
        """Look at what the body has left."""
        there = _values_of(frame, self.body)
        self.after, self._who_after = self._forms(there)
        now = {name: there.get(name, NOTHING) for name in self._values}
        self.rebound = {n: value for n, value in now.items() if value is not self._values[n]}
        self._mementos.see()

    def put_back(self, frame: FrameType) -> None:
        """Have all that see() saw changed as it was."""
        self._mementos.put_back()
        _set_values(frame, {name: self._values[name] for name in self.rebound}, self.body)
        there = _values_of(frame, self.body)
        now, _ = self._forms(there)  # Mementos do not go as deep.
        forms = {p: f for p, f in self.before.items() if p in now and now[p] != f}
        _bring(frame, self.body, there, ((path, form, False) for path, form in forms.items()))

    def changed(self) -> set[_Path]:
        """Return what the body has changed."""
        before = self.before
        found = {p for p, form in self.after.items() if p not in before or before[p] != form}
        return {p for p in found if len(p) == 1 or not self._is_a_new_tensor(p)}

    def _is_a_new_tensor(self, path: _Path) -> bool:
        """Whether it is a large one. An object's is new in each step, as a rule, and not read."""
        form = self.after[path]
        is_new = self._who_before.get(path) != self._who_after.get(path)
        return is_new and type(form) is Opaque and form.is_tensor

    def bound(self) -> set[_Path]:
        """Return what is another object than before."""
        return {p for p, who in self._who_after.items() if self._who_before.get(p) != who}

    def large(self) -> Iterator[tuple[_Path, bool]]:
        """Yield where attributes are large tensors, and whether that is the one as before."""
        for path, form in self.after.items():
            if len(path) > 1 and type(form) is Opaque and form.is_tensor and path in self.before:
                yield path, self._who_before.get(path) == self._who_after[path]

    def untold(self, changed: set[_Path], bound: frozenset[_Path]) -> Iterator[tuple[_Path, bool]]:
        """Yield what of `changed` can not be given to a process that replaces this one.

        And whether that is known to be missed: what is assigned anew in each step is not, if the
        step does not read it before. `bound`: what has been bound anew.
        """
        for path in changed:
            form, before = self.after[path], self.before.get(path, NOTHING)
            is_object = path[-1] == ""
            where = path[:-1] if is_object else path
            is_missed = len(where) == 1 and where[0] in self.body.needed
            if is_object:
                yield where, is_missed
            elif type(form) is Opaque:
                is_new = before is NOTHING or (type(before) is Opaque and before.who != form.who)
                yield where, is_missed or not is_new
            elif not can_be_told(form, before) or (path in bound and not fits(form)):
                yield where, True
        for name, value in self.rebound.items():
            is_seen = (name,) in self.after or (name, "") in self.after
            is_missed = name in self.body.needed and not is_seen
            if is_missed or (name in self.body.carried and isinstance(value, _LASTING)):
                yield (name,), True

    def _forms(self, there: dict[str, Any]) -> tuple[dict[_Path, Any], dict[_Path, int]]:
        found: dict[_Path, Any] = {}
        who: dict[_Path, int] = {}
        for name in self.body.carried | self.body.reads:
            value = there.get(name, NOTHING)
            if type(value) in PLAIN:
                found[name,] = value
                continue
            if value is NOTHING or id(value) in self._not_ours:
                continue
            if isinstance(value, torch.nn.Module):
                found[name,] = Opaque(id(value), writes_to(value, self._not_ours))
                continue
            is_carried = name in self.body.carried
            room = _FILLED if name in self.body.fills else _CARRIED if is_carried else _SMALL
            if not self._attributes((name,), value, found, who):
                form = form_of(value, room)
                if form is not NOTHING:
                    found[name,], who[name,] = form, id(value)
        return found, who

    def _attributes(
        self, path: _Path, thing: Any, found: dict[_Path, Any], who: dict[_Path, int]
    ) -> bool:
        """Find the attributes of an object of the program's own. False: it is none."""
        held = attributes_of(thing)
        if held is None:
            return False
        found[_marker(path)] = Opaque(id(thing), 0)
        for name, part in list(held.items()):
            at = (*path, name)
            if type(part) in PLAIN:
                found[at] = part
                continue
            if id(part) in self._not_ours:
                continue
            if isinstance(part, torch.nn.Module):
                found[at] = Opaque(id(part), writes_to(part, self._not_ours))
                continue
            if len(path) >= _DEPTH or not self._attributes(at, part, found, who):
                form = form_of(part, _FILLED)
                if form is not NOTHING:
                    found[at], who[at] = form, id(part)
        return True


class Variables:
    """Those of the functions, or the module, that make the steps. Not thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know none. `say`: where warnings go."""
        self.not_ours: set[int] = set()  # Ids of objects that are looked after elsewhere.
        self._say = say
        self._said: set[str] = set()
        self._graphs: set[str] = set()  # Variables that were seen to hold one, or none.
        self._under_way: dict[_Key, bytes] = {}  # After the last step.
        self._ended: dict[_Key, bytes] = {}  # After the last pass.
        self._passes = Records(
            say,
            "what the passes over data leave in variables is {limit}; a process that replaces "
            "another finds in them what the last pass has left, for each",
        )
        self._loops: list[_Loop] = []  # Of the step under way.
        # What they have changed, and, since their pass began, what no successor can be given.
        self._changed: dict[_Key, frozenset[_Path]] = {}
        self._bound: dict[_Key, frozenset[_Path]] = {}
        self._untold: dict[_Key, set[_Path]] = {}
        # Attributes that a step has left the large tensor that they were: one that is new in each
        # step is read in none, as a rule, but these are what later steps read.
        self._lasting: set[tuple[_Key, _Path]] = set()
        self._given: dict[_Key, dict[str, Callable[[], Any]]] = {}  # To a `with`, in the last step.

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self._under_way, self._ended

    def restore(self, objects: Any) -> None:
        """Go on from an image."""
        self._under_way, self._ended = map(dict, objects)
        records = {name: pickle.loads(raw) for name, raw in self._under_way.items()}
        self._changed = {name: record.changed for name, record in records.items()}
        self._bound = {name: record.bound for name, record in records.items()}

    def open(self, path: Path, version: int) -> None:
        """Keep what each pass leaves in a file; `version`: with which this process begins."""
        self._passes.open(path, version)

    # ---- Steps ----------------------------------------------------------------------------------

    def hold(self, frame: FrameType | None, begins: bool) -> None:
        """Look at what the step that begins may change. `begins`: so does a pass."""
        self._loops = [_Loop(f, self.not_ours) for f in _loops_around(frame)]
        for loop in self._loops:
            if begins:
                self._untold.pop(loop.key, None)

    def see(self, frame: FrameType | None) -> None:
        """Look at what the step's body has left; what the data's source does then is not its."""
        for loop, f in self._each(frame):
            loop.see(f)

    def put_back(self, frame: FrameType | None) -> None:
        """Have all that the body has changed as it was at hold(): the step is void."""
        for loop, f in self._each(frame):
            loop.put_back(f)
        self._loops = []

    def note(self, frame: FrameType | None, ends: bool) -> None:
        """Have the next image hold what see() saw. `ends`: with the step ends its pass."""
        for loop, f in self._each(frame):
            new = loop.changed()
            bound = self._bound.get(loop.key, _NONE) | loop.bound()
            self._bound[loop.key] = bound
            untold = self._see_what_is_lost(loop, new, bound)
            changed = self._changed[loop.key] = self._changed.get(loop.key, _NONE) | new
            forms = {p: loop.after.get(p, NOTHING) for p in changed if not _place_within(p, untold)}
            forms, left_out = _within(_LIMIT, forms)
            for path in left_out:
                untold.add(path)
                if len(path) > 1 or path not in bound or path[0] in loop.body.needed:
                    self._say_missed(path)
            record = _Record(loop.at, forms, changed, bound, self._see_given(loop))
            self._under_way = _with(self._under_way, loop.key, record)
            if ends:
                record = _with_others(record, loop.body, _values_of(f, loop.body))
                self._ended = _with(self._ended, loop.key, record)

    def done(self) -> None:
        """Let go of what was held for put_back()."""
        self._loops = []

    def end_pass(self, number: int, version: int) -> None:
        """Take note that pass `number` has ended with the step that made `version`."""
        self._passes.add(number, version - 1, pickle.dumps(self._ended))

    def _each(self, frame: FrameType | None) -> Iterator[tuple[_Loop, FrameType]]:
        around = {_name_of(f): f for f in _loops_around(frame)}
        return ((loop, around[loop.key[0]]) for loop in self._loops if loop.key[0] in around)

    def _see_given(self, loop: _Loop) -> frozenset[str]:
        """Return which variables of a `with` hold the same object in each step: a meter, say."""
        if not loop.body.is_with:
            return frozenset()
        before = self._given.get(loop.key, {})
        held = {name: value for name, value in loop.held.items() if type(value) not in PLAIN}
        self._given[loop.key] = {name: _reference_to(value) for name, value in held.items()}
        return frozenset(name for name in before.keys() & held if before[name]() is held[name])

    def _see_what_is_lost(
        self, loop: _Loop, changed: set[_Path], bound: frozenset[_Path]
    ) -> set[_Path]:
        """Return what no successor can be given, and say what it would miss."""
        untold = self._untold.setdefault(loop.key, set())
        within = [path for path in changed if not _is_new(path, changed)]
        missed = [outer for path in within if (outer := _place_within(path, untold))]
        for path, is_missed in loop.untold(changed, bound):
            untold.add(path)
            if is_missed:
                missed.append(path)
        for path, is_same in loop.large():
            if is_same:
                self._lasting.add((loop.key, path))
            elif (loop.key, path) in self._lasting:
                missed.append(path)
        for path in missed:
            self._say_missed(path)
        for name in loop.rebound.keys() & loop.body.needed - self._graphs:
            self._graphs.add(name)  # To look takes time.
            if _has_a_graph(loop.rebound[name]):
                self._say_missed((name,))
        return untold

    def _say_missed(self, path: _Path) -> None:
        name = own_name(".".join(filter(None, path)))
        if name not in self._said:
            self._said.add(name)
            self._say(
                f"what a step leaves in `{name}` for the next can not be given to a process that "
                "replaces another (too large, another object, a graph of several steps): it begins "
                "with what is there at its start. Keep what the steps go by in a dict, or in what "
                "has state_dict(), that State is given"
            )

    # ---- A process that was started again -------------------------------------------------------

    def resume(self, frame: FrameType | None) -> None:
        """Set what the last step of a predecessor has left, where its loop goes on."""
        for f in _loops_around(frame):
            for record in _records_of(f, self._under_way):
                is_with = body_of(f.f_code, record.at).is_with  # Others may stand beside it.
                if offset_of(f) == record.at or is_with:
                    _give(f, record, passed_over=True)

    def resume_ahead(self, frame: FrameType | None) -> None:
        """Do so where the program looks, before its `with state.step()`, whether steps are left."""
        for f in _loops_around(frame):
            for record in _records_of(f, self._under_way):
                if f.f_lasti < record.at and is_in_loop(f.f_code, record.at):
                    _give(f, record, passed_over=True)

    def give_back(
        self, frame: FrameType | None, number: int | None = None, passed_over: bool = True
    ) -> None:
        """Set in the loops around `frame` what is not there, as it was after pass `number`.

        Or after the last one. `passed_over`: also what the steps of the pass, which are not made
        here, would have.
        """
        raw = self._passes.known.get(number)
        ended = self._ended if raw is None else pickle.loads(raw)
        for f in _loops_around(frame):
            for record in reversed([*_records_of(f, ended)]):
                _give(f, record, passed_over and offset_of(f) == record.at)


def _records_of(frame: FrameType, records: dict[_Key, bytes]) -> Iterator[_Record]:
    """Yield those of a function, the oldest first."""
    name = _name_of(frame)
    return (pickle.loads(raw) for key, raw in records.items() if key[0] == name)


def _with(records: dict[_Key, bytes], key: _Key, record: _Record) -> dict[_Key, bytes]:
    """Return the records with one more, and without the oldest that have no room any more."""
    newest = {**{k: raw for k, raw in records.items() if k != key}, key: pickle.dumps(record)}
    while sum(map(len, newest.values())) > ROOM // 2 and len(newest) > 1:
        del newest[next(iter(newest))]
    return newest


def _give(frame: FrameType, record: _Record, passed_over: bool) -> None:
    body = body_at(frame, record.at)
    there = _values_of(frame, body)
    is_once = not body.is_with or (body.in_loop and _is_called_once(frame))

    def is_due(path: _Path) -> bool:
        # What a `with` is given anew for each step is the step's own.
        is_own = path[0] in body.elsewhere or (not is_once and path[0] not in body.of_module)
        is_same = path[0] in record.given and path not in record.bound
        if is_own and not is_same and (len(path) == 1 or path[0] != "self"):
            return False
        return (passed_over and path in record.changed) or _value_at(there, path) is NOTHING

    due = filter(is_due, record.forms)
    forms = ((path, pickle.loads(record.forms[path]), path in record.bound) for path in due)
    _bring(frame, body, there, forms)


def _bring(
    frame: FrameType,
    body: Body,
    there: dict[str, Any],
    forms: Iterable[tuple[_Path, Any, bool]],
) -> None:
    """Bring a function's variables, which are `there`, to forms; where it says so, to new ones."""
    given = {}
    for path, form, is_new in forms:
        now = _value_at(there, path)
        old = NOTHING if is_new else now
        if not fits(form, old):
            continue
        value = brought_to(form, old)
        if len(path) > 1:
            if (held := attributes_of(_value_at(there, path[:-1]))) is not None:
                held[path[-1]] = value
        elif value is not now:
            given[path[0]] = value
    _set_values(frame, given, body)


def _is_called_once(frame: FrameType) -> bool:
    """Whether no function of the program's on the way to this one calls it in a loop."""
    on_the_way = (
        f for f in callers(frame.f_back) if not f.f_code.co_filename.startswith(LIBRARIES)
    )
    return not any(is_in_loop(f.f_code, f.f_lasti) for f in on_the_way)


def _value_at(there: dict[str, Any], path: _Path) -> Any:
    value = there.get(path[0], NOTHING)
    for name in path[1:]:
        value = (attributes_of(value) or {}).get(name, NOTHING)
    return value


def _with_others(record: _Record, body: Body, there: dict[str, Any]) -> _Record:
    """Return a record that has all that is small in a function, and first what its body sets."""
    others: dict[_Path, Any] = {
        (name,): form_of(value, _SMALL)
        for name, value in there.items()
        if (name,) not in record.forms and not name.startswith("_")
    }
    first: dict[_Path, Any] = {
        path: others.pop(path) for path in list(others) if path[0] in body.sets
    }
    forms = {
        **record.forms,
        **_within(_LIMIT_OF_OTHERS, first)[0],
        **_within(_LIMIT_OF_OTHERS, others)[0],
    }
    bound = record.bound | first.keys()
    return record._replace(forms=forms, changed=record.changed | first.keys(), bound=bound)


def _within(limit: int, forms: dict[_Path, Any]) -> tuple[dict[_Path, bytes], list[_Path]]:
    """Return forms, pickled, as there is room for, the smallest; and what is left out."""
    found: dict[_Path, bytes] = {}
    left_out = []
    for path, form in forms.items():
        if not is_opaque(form):
            try:
                found[path] = pickle.dumps(form)
            except Exception:  # A class within a function has no name for others.
                left_out.append(path)
    size = sum(map(len, found.values()))
    for path in sorted(found, key=lambda path: len(found[path]), reverse=True):
        if size <= limit:
            break
        size -= len(found.pop(path))
        left_out.append(path)
    return found, left_out


def _reference_to(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # A list, which is small.
        return lambda: value


def _marker(path: _Path) -> _Path:
    """Return where it stands which object of the program's is at `path`."""
    return (*path, "")


def _place_within(path: _Path, places: set[_Path]) -> _Path:
    """Return which of `places` that is within, or nothing."""
    return next((path[:n] for n in range(1, len(path) + 1) if path[:n] in places), ())


def _is_new(path: _Path, changed: set[_Path]) -> bool:
    """Whether it belongs to an object that is another one than before, or is that itself."""
    return any(_marker(path[:n]) in changed for n in range(1, len(path))) or len(path) == 1


def _has_a_graph(value: Any) -> bool:
    """Whether a backward pass can still go through what a value was made of."""
    left = [value.grad_fn] if isinstance(value, Tensor) and value.grad_fn is not None else []
    is_there = bool(left)
    for node in left:
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except Exception:  # It has gone.
                    return False
        if len(left) < _MOST_NODES:
            left.extend(inner for inner, _ in node.next_functions if inner is not None)
    return is_there


def _loops_around(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield who makes the steps: a function, and generators of the program's that it goes through.

    No part of Holdfast, and no progress bar's generator.
    """
    for f in callers(frame):
        file, is_generator = f.f_code.co_filename, f.f_code.co_flags & inspect.CO_GENERATOR
        if file.startswith((OURS, contextlib.__file__)):
            continue
        if not (is_generator and file.startswith(LIBRARIES)):
            yield f
        if not is_generator:
            return


def _name_of(frame: FrameType) -> _Name:
    code = frame.f_code
    return code.co_filename, code.co_name, code.co_firstlineno


def _values_of(frame: FrameType, body: Body) -> dict[str, Any]:
    """Return a function's variables, and those of its module that the body names."""
    found = {}
    for name in body.of_module:
        module, own = module_of(name, frame)
        if own in module:
            found[name] = module[own]
    found.update(variables_of(frame))
    return found


def _set_values(frame: FrameType, values: dict[str, Any], body: Body) -> None:
    own = {name: value for name, value in values.items() if name not in body.of_module}
    if own:
        set_variables(frame, own)
    for name in values.keys() - own.keys():
        module, of_it = module_of(name, frame)
        module[of_it] = values[name]
