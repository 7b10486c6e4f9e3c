"""Results that all ranks make once, together, and that a successor is told: `state.once(f)`.

A result is known by its place: the epoch, and how many the program asked for before in that epoch.
Those outside of epochs are counted through the program; in a loop of the program's own they are
known by the step that they follow.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch

from holdfast._errors import UserError
from holdfast.torch._between import Between
from holdfast.torch._engine import Engine, say
from holdfast.torch._kept import Kept
from holdfast.torch._plan import Key
from holdfast.torch._progress import Progress
from holdfast.torch._versions import Versions

ROOM: Final = 1 << 20  # Bytes that all results together may have.
_OUTSIDE: Final = -1
_COUNTED: Final = 2  # Parts of a key that does not name its step.


class Results:
    """Those of one State. Not thread-safe."""

    def __init__(self, engine: Engine, kept: Kept, versions: Versions, progress: Progress) -> None:
        """Know what a predecessor was told."""
        self._engine = engine
        self._kept = kept
        self._versions = versions
        self._progress = progress
        self._asked: Counter[Key] = Counter()

    def begin_epoch(self, epoch: int) -> None:
        """Count anew."""
        self._asked.pop((epoch,), None)

    def begin_again(self) -> None:
        """Count anew after a void step of a loop of the program's own, which goes round again."""
        self._asked.clear()

    def prune(self) -> None:
        """Forget what nobody asks for any more, once the step under way is done."""
        progress = self._progress
        self._progress.results = {
            key: raw
            for key, raw in progress.results.items()
            if key[0] == progress.position.epoch or (key[0] == _OUTSIDE and len(key) == _COUNTED)
        }

    @property
    def is_counted_outside(self) -> bool:
        """Whether any was made before the loop over epochs, or where one would be."""
        return any(k[0] == _OUTSIDE and len(k) == _COUNTED for k in self._progress.results)

    def key(self, epoch: int | None, name: str) -> Key:
        """Return the place of the next result; `epoch`: None outside of epochs."""
        if epoch is not None:
            series: Key = (epoch,)
        elif self._progress.position.own:
            series = (_OUTSIDE, self._progress.n, name)
        else:
            series = (_OUTSIDE,)
        self._asked[series] += 1
        return (*series, self._asked[series])

    def knows(self, key: Key) -> bool:
        """Whether the result was made."""
        return key in self._progress.results

    def told(self, key: Key) -> Any:
        """Return a result that was made; generators go on as after it."""
        self._progress.seeds.derive("after", *map(str, key), self._progress.n).set()
        return pickle.loads(self._progress.results[key])

    def make(self, key: Key, function: Callable[[], Any]) -> Any:
        """Have all ranks call a function until no fault came; return what it gave."""
        engine, progress = self._engine, self._progress
        before = Between(self._kept, self._versions.tensors())
        undo = self._kept.undo_of_an_evaluation()
        while True:
            self._versions.begin()
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
                return self.told(key)
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

    @torch.no_grad()
    def _see_that_nothing_changed(self, before: Between, undo: Callable[[], None]) -> None:
        """Take back what an evaluation leaves in buffers and modes. UserError: it did more."""
        undo()
        changed = Between(self._kept, self._versions.tensors()).difference(before)
        if changed and not self._engine.marked:
            raise UserError(
                f"the function that state.once(...) was given changed `{changed}`, which a "
                "replacement would not have: it is told the result only. Return what was found, "
                "and set it afterwards"
            )
