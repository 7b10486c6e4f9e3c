"""The state of a training and its steps: a fault in step n costs at most step n."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast import _core
from holdfast._core import Status
from holdfast._errors import LeftError, MarkedError, PeerError
from holdfast.mindspore import _operators
from holdfast.mindspore._engine import Engine, Phase, say
from holdfast.mindspore._image import Changes, Image

_HELLO: Final = struct.Struct("<Q16sQ")  # Who this is, what is kept, version.
SURVIVOR, RESTARTED, HELPER = range(3)
_MEETS: Final = 8  # Added to one of them: it is at a collective of a callback.


def hello(session: _core.Session, kind: int, digest: bytes) -> list[tuple[int, bytes, int]]:
    """Tell the others who this is and what it keeps; return what they say, in rank order."""
    mine = _HELLO.pack(kind, digest, session.version)
    everyone = bytearray(len(mine) * session.world.size)
    session.world.all_gather(mine, len(mine), everyone)
    found = [_HELLO.unpack_from(everyone, i * len(mine)) for i in range(session.world.size)]
    return [(int(kind), bytes(digest), int(version)) for kind, digest, version in found]


class State:
    """What one network's steps depend on; version n of the session is the state after n steps."""

    def __init__(
        self, engine: Engine, parameters: list[Any], objects: dict[str, Any], others: list[Any]
    ) -> None:
        """Open the state and join the others: then all is as after the last step of this rank.

        At the first start parameters become as rank 0's. `objects`: what is kept besides;
        `others`: parameters that are not the network's.
        """
        self._engine = engine
        self._image = Image(parameters, objects, others)
        self.objects = objects
        session = engine.open(self._image.bytes)
        self._session = session
        self.on_helper: Callable[[bool], None] | None = None
        self._greeted = 0
        self.under_way = False
        self._between: tuple[int, Changes] = (-1, {})  # Since which step, what callbacks changed.
        self._kind = RESTARTED if engine.restarted else SURVIVOR
        if session.fresh:
            self._image.write(session.private(0), objects)
        session.join()
        self.restore()
        self._turn = threading.Lock()
        engine.set_phase(Phase.ECHO)
        _operators.on_echo(self._meet)

    @property
    def n(self) -> int:
        """Steps that are done."""
        return self._session.version

    @property
    def session(self) -> _core.Session:
        """The session."""
        return self._session

    def restore(self) -> None:
        """Bring parameters and objects to what they were after step n.

        What callbacks, or the program between two calls, have changed since then is kept: they do
        not run again for a step that is made again.
        """
        version, changes = self._between
        self.objects = self._image.read(self._session.private(self._session.version))
        if version == self._session.version:
            self._image.put(changes)

    def changes(self) -> Changes:
        """Return what was changed since step n."""
        return self._image.changes(self._session.private(self._session.version))

    def go_back(self, changes: Changes) -> None:
        """Bring parameters and objects to what they were after step n and these changes."""
        self._between = self._session.version, changes
        self.restore()

    # ---- One step -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a step. One that is under way is given up."""
        session, engine = self._session, self._engine
        while True:
            if session.begin_step():
                self.restore()
            if session.generation == self._greeted:
                return
            engine.set_phase(Phase.LIVE)
            _operators.on_echo(None)
            _operators.clear()
            if self._greet():
                self._greeted = session.generation
                return

    def _meet(self) -> None:
        """Bring the groups for a collective of a callback; called by its operator.

        The others may be beyond it: then they start again too, from the same step, and come to it.
        Where one has ended its program, it has made it and is gone: an echo it is then.
        """
        try:
            with self._turn:
                if self._engine.phase is not Phase.ECHO:
                    return
                self._kind |= _MEETS
                self._look()
                self._begin()
                _operators.strict(True)
        except LeftError as error:
            self._kind &= ~_MEETS
            self._engine.say_once(
                f"{error}: the program's own collectives after the last step give what this rank "
                "sends, as if all had sent the same"
            )
        except BaseException as error:  # In C nobody would hear of it.
            say(str(error))
            os._exit(1)

    def _greet(self) -> bool:
        """Tell the others who this is and what it keeps. False: a fault came."""
        session = self._session
        version = session.version
        try:
            hellos = hello(session, self._kind, self._image.digest)
        except LeftError:
            raise
        except MarkedError:
            return False
        alive = [rank for rank, (kind, _, _) in enumerate(hellos) if kind != HELPER]
        for rank in alive:
            _, digest, theirs = hellos[rank]
            if digest != self._image.digest or theirs != version:
                raise PeerError(
                    f"rank {rank} has other parameters than rank {session.world.rank}; all ranks "
                    "run one program with one network"
                )
        if len(alive) < session.world.size:
            self._kind &= _MEETS
            assert self.on_helper is not None
            self.on_helper(alive[0] == session.world.rank)
            return False  # The job is about to end, or the one who saves was lost.
        if not self._all_meet([kind for kind, _, _ in hellos]):
            return False
        self._kind = SURVIVOR
        return True

    def _all_meet(self, kinds: list[int]) -> bool:
        """Return whether all are at a collective of a callback, or none.

        Who has passed it ends here, and is back at it when it has started again.
        """
        there = [rank for rank, kind in enumerate(kinds) if kind & _MEETS]
        if len(there) in (0, len(kinds)):
            return True
        passed = [rank for rank, kind in enumerate(kinds) if kind == RESTARTED]
        if passed:
            raise PeerError(
                f"rank {there[0]} is at a collective of a callback, to which rank {passed[0]} does "
                "not come; all ranks make the same collectives in their callbacks"
            )
        if not self._kind & _MEETS:
            raise MarkedError(
                f"rank {there[0]} replaces a process that was lost, and is at a collective of a "
                "callback, which this one has made already; this process ends, so that it starts "
                "again from the last step"
            )
        with contextlib.suppress(MarkedError):
            self._session.world.barrier()  # Those who have passed do not come: they start again.
        return False

    def step(
        self,
        compute: Callable[[], Any],
        describe: Callable[[Any], dict[str, Any]],
        may_differ: bool = True,
    ) -> Any:
        """Make step n + 1: compute() changes the parameters. Return its result.

        A step that a fault made void is made again. `describe(result)`: the objects after it.
        `may_differ`: somebody may have changed parameters since step n.
        """
        engine = self._engine
        self._check_between()
        if may_differ:
            self._look()
        while True:
            self._begin()
            _operators.strict(False)
            result = self._compute(compute)
            status, text = _operators.status()
            if status is Status.ABORTED:  # What echoes have touched is never staged.
                _operators.clear()
                self.restore()
            elif status is not Status.OK:
                raise PeerError(text or f"a collective of this step was not made ({status.name})")
            elif not self._commit(describe(result)):
                _operators.strict(True)  # In a callback nobody would look after a mark.
                return result
            if engine.rank == 0:
                say(f"step {self.n + 1} was void, it is made again")

    def _look(self) -> None:
        """Remember what was changed since step n; restore() keeps it."""
        self._between = self._session.version, self.changes()

    def _compute(self, compute: Callable[[], Any]) -> Any:
        before, self.under_way = _operators.count(), False
        try:
            return compute()
        except BaseException:
            # Others may have gone on by what this rank has sent already.
            self.under_way = _operators.count() != before
            raise

    def _check_between(self) -> None:
        status, text = _operators.status()
        if status is not Status.OK and self._engine.phase is Phase.LIVE:
            raise MarkedError(
                "a collective between two steps was not completed, since another process was "
                f"lost; this process ends, so that it starts again from the last step ({text})"
            )

    def _commit(self, objects: dict[str, Any]) -> bool:
        """End the step. True: it is void, and everything is as before it."""
        session = self._session
        self._image.write(session.private(session.version + 1), objects)
        if session.end_step(_core.Step(loss=objects.get("loss", 0.0))):
            self.restore()
            return True
        self.objects = objects
        return False
