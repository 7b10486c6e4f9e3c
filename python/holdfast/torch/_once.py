"""Results that all ranks make once, together, and that a successor gets: `state.once(f)`.

The key of a result consists of its place, the function's name, and a count of the calls with that
name at that place. The place is the epoch and the number of loops over steps() before it in that
epoch; outside of epochs, it is the step before it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from holdfast._errors import UserError
from holdfast._say import say
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._plan import Key
from holdfast.torch._position import Progress
from holdfast.torch._versions import Versions

ROOM: Final = 1 << 20  # Bytes that all results together may have.
_OUTSIDE: Final = -1


class Results:
    """The results of one State. Not thread-safe."""

    def __init__(self, engine: Engine, kept: Kept, versions: Versions, progress: Progress) -> None:
        """Begin with the results of a predecessor, if there are any."""
        self._engine = engine
        self._kept = kept
        self._versions = versions
        self._progress = progress
        self._asked: Counter[Key] = Counter()

    def begin_again(self) -> None:
        """Count calls anew: in a new epoch, or after a void step of the program's own loop."""
        self._asked.clear()

    def prune(self) -> None:
        """Forget results that no successor will ask for, once the step under way is done."""
        kept = (_OUTSIDE, self._progress.position.epoch)
        self._progress.results = {
            key: raw
            for key, raw in self._progress.results.items()
            if key[0] in kept and (key[0] != _OUTSIDE or key[1] == 0)
        }

    def key(self, epoch: int | None, after: int, name: str) -> Key:
        """Return the key of the next result of a function called `name`.

        `after`: the number of loops over steps() before it in the epoch; outside of epochs
        (`epoch` is None), the step before it.
        """
        series: Key = (_OUTSIDE if epoch is None else epoch, after, name)
        self._asked[series] += 1
        return (*series, self._asked[series])

    def knows(self, key: Key) -> bool:
        """Return whether the result was made."""
        return key in self._progress.results

    def told(self, key: Key) -> Any:
        """Return a result that was made, and set the random generators as they are after it."""
        self._progress.seeds.derive("after", *map(str, key)).set()
        return pickle.loads(self._progress.results[key])

    def make(self, key: Key, function: Callable[[], Any]) -> None:
        """Call a function on all ranks, again if a fault comes, and keep what it returns."""
        engine, progress = self._engine, self._progress
        if engine.seat.rehearses:
            engine.seat.worker.rehearsal_differs(f"it comes to state.once({key[2]}), not to a step")
        before = self._kept.fingerprints()
        undo = self._kept.undo_of_an_evaluation()
        while True:
            repairs = self._versions.repairs
            self._versions.begin(key)
            if self._versions.repairs != repairs:
                before = self._kept.fingerprints()
            progress.seeds.derive("once", *map(str, key), progress.n).set()
            try:
                raw = self._call(function)
                self._see_that_nothing_changed(before, undo)
                is_made = self._versions.commit_result(key, raw)
            except BaseException:
                engine.drain()
                undo()
                raise
            finally:
                engine.in_step = engine.marked = False
            if is_made:
                return
            say(f"a result of state.once(...) after step {progress.n} was void, it is made again")

    def _call(self, function: Callable[[], Any]) -> bytes:
        result = function()
        try:
            raw = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise UserError(
                f"state.once(f) keeps what f returns, and that can not be pickled: {error}; return "
                "plain values"
            ) from error
        if len(raw) + sum(map(len, self._progress.results.values())) > ROOM:
            raise UserError(
                f"state.once(f) keeps what f returns, and that has {len(raw):,} bytes; "
                f"{ROOM:,} can be kept in an epoch. Return less, or write it to a file"
            )
        return raw

    def _see_that_nothing_changed(self, before: dict[str, Any], undo: Callable[[], None]) -> None:
        """Take back an evaluation's changes to buffers and modes. UserError: it changed more."""
        undo()
        now = self._kept.fingerprints()
        changed = next((name for name in now if now[name] != before.get(name)), "")
        if changed and not self._engine.marked:
            raise UserError(
                f"the function that state.once(...) was given changed `{changed}`, which a "
                "replacement would not have: it is told the result only. Return what was found, "
                "and set it afterwards"
            )
