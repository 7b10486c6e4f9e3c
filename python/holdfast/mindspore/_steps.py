"""The state of a training and its steps: a fault in step n costs at most step n."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from holdfast import _core
from holdfast._abi import Status
from holdfast._errors import LeftError, MarkedError, PeerError
from holdfast._losses import HEARD, Act, Losses
from holdfast._replicas import Place
from holdfast._sampling import recording_folder
from holdfast._say import say
from holdfast._seat import Phase
from holdfast._versions import Versions, say_void, tell
from holdfast.mindspore import _bulk, _operators
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._image import Changes, Image
from holdfast.mindspore._last import gasp
from holdfast.mindspore._sampled import Sampled

_HELLO: Final = struct.Struct("<Q16s8sQ")  # The fields of Hello.
SURVIVOR, RESTARTED, HELPER = range(3)
_ALIKE: Final = "parameters that are alike"
_MEETS: Final = 8  # A bit of a kind: the process is at a collective between steps.


class Hello(NamedTuple):
    """What a process tells the others when a generation begins."""

    kind: int  # SURVIVOR, RESTARTED or HELPER, perhaps with _MEETS.
    digest: bytes  # Of the names, types and shapes of parameters.
    purpose: bytes  # Digest of what the next step is for.
    version: int


def hello(session: _core.Session, kind: int, digest: bytes, purpose: bytes) -> list[Hello]:
    """Exchange hellos; return those of all ranks, in rank order. MarkedError: a fault came."""
    return [Hello(*one) for one in tell(session, _HELLO, kind, digest, purpose, session.version)]


class Steps(Versions):
    """The state of one network's steps. Version n of the session is the state after n steps."""

    def __init__(
        self,
        engine: Engine,
        parameters: list[Any],
        objects: dict[str, Any],
        others: list[Any],
        room: int = 0,
    ) -> None:
        """Open the state, join the others, and bring everything to the last step.

        At the first start, parameters become equal to rank 0's. `objects`: what is kept besides
        parameters. `others`: parameters that are not the network's. `room`: bytes by which objects
        may grow beyond the usual.
        """
        self._engine = engine
        self._served = engine.served if engine.served.parts else None
        self._image = Image(parameters, objects, others, room)
        self.objects = objects
        self.under_way = False
        self.purpose = "a step"  # What the next step is for, the same on all ranks.
        self._between: tuple[int, Changes] = (-1, {})  # A step; parameters changed since.
        self._kind = RESTARTED if engine.restarted else SURVIVOR
        self._alike = b""  # See Image.alike().
        self._places: list[Place] = []
        self._numbers: list[int] = []  # Of the parameters in these places.
        self._known = -1, b""  # How many parameters the engine knew, and what was found with it.
        self.open(engine.open(self._image.bytes))
        self.sampled = Sampled(self.session)
        self._turn = threading.Lock()
        engine.set_phase(Phase.ECHO)
        _operators.on_echo(self._meet)
        if self._owes:  # Of a version whose callbacks no rank has called yet.
            self.begin_version()
            _operators.strict(True)

    @property
    def n(self) -> int:
        """The number of steps that are done. With parameter servers, each is two versions."""
        version = self.session.version
        return version if self._served is None else max(0, version // 2 - 1)

    def fill(self, view: memoryview) -> None:
        """Write version 0."""
        self._image.write(view, self.objects)

    def restore(self) -> None:
        """Bring parameters and objects to what they were after step n.

        Changes that callbacks, or the program between two calls, have made since then stay: a
        replay does not make them again.
        """
        version, changes = self._between
        self.session.uses_committed()
        self.objects = self._image.read(self.last, self.see_makers)
        self._hold(self.objects.get(_ALIKE, b""))
        if self._served:
            self._served.forget()
        if version == self.session.version:
            self._image.put(changes)

    def repair(self, which: list[int]) -> None:
        """Set these parameters to the values that the last version has of them."""
        repaired = [self._numbers[i] for i in which]
        version, changes = self._between
        is_of_now = version == self.session.version
        if is_of_now and not self._image.are_as(changes, repaired, self.last):
            raise self._engine.worker.fail(
                f"rank {self._engine.rank} held other values of a parameter than most ranks, and "
                "the program has changed it from these since the last step"
            )
        for i in repaired:  # It was the version that had changed, not the program's memory.
            changes.pop(i, None)
        self.session.uses_committed()
        self._image.take(repaired, self.last)

    def flip(self, which: int, byte: int, bit: int) -> None:
        """Flip a bit of what the program trains on, where a replica, by its place, comes from."""
        self._image.flip(self._numbers[which], byte, bit)

    def _hold(self, alike: bytes) -> None:
        """Note which parameters the last version holds alike on all ranks."""
        if self._alike != alike:
            self._alike, self._places = alike, self._image.places(alike)
            self._numbers = [i for i, is_alike in enumerate(alike) if is_alike]
        if self._served:
            self.replicas.hold(self._places, self.session.version)
            return
        at = self.objects.get("at")  # State's position: the ends of its epochs are no steps.
        self.replicas.hold(self._places, at[0] if at else self.n)

    def changes(self) -> Changes:
        """Return the parameters that have changed since step n."""
        return self._image.changes(self.last)

    def go_back(self, changes: Changes) -> None:
        """Bring parameters and objects to what they were after step n, with these changes."""
        self._between = self.session.version, changes
        self.restore()

    # ---- Parameters that servers keep ------------------------------------------------------------
    # The servers make their update when a version is committed: only then can its values be had. So
    # a second version follows each, which has them. It is of the same step. The first two versions
    # of all give the servers rank 0's values.

    @property
    def _owes(self) -> bool:
        """Whether a version has to follow that renews the parameters which servers keep."""
        if self._served is None or self.session.rehearses:
            return False
        return self.session.version == 0 or self.session.version % 2 == 1

    def begin_version(self) -> None:
        """Begin a version, as Versions does, after all that renews parameters."""
        super().begin_version()
        while self._owes:
            self._renew()
            super().begin_version()

    def _renew(self) -> None:
        """Make the version under way. A fault leaves it to the next begin."""
        assert self._served is not None
        try:
            if self.session.version:
                self._served.pull()
            else:
                self._served.assign()
        except LeftError:
            raise
        except MarkedError:
            return
        self._image.write(self.next, self.objects)
        if self.session.end_step(_core.Step(used=self._image.used)):
            self.restore()

    # ---- One step -------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Begin a version for a collective of a callback. The collective's operator calls this.

        If the other ranks have made this collective already, they start again too, from the same
        step, and make it again. If another rank has ended its program, it has made this collective
        as well, and the answer is an echo.
        """
        try:
            with self._turn:
                if self._engine.phase is not Phase.ECHO:
                    return
                if self.session.rehearses:
                    self._engine.worker.rehearsal_skips(
                        "a callback exchanges something between two steps, which the rank that is "
                        "rehearsed has not shown"
                    )
                self._kind |= _MEETS
                self._look()
                self.begin_version()
                _operators.strict(True)
        except LeftError as error:
            self._kind &= ~_MEETS
            self._engine.say_once(
                f"{error}: the program's own collectives after the last step give what this rank "
                "sends, as if all had sent the same"
            )
        except BaseException as error:  # C, which calls this, drops exceptions.
            say(str(error))
            os._exit(1)

    def greet(self) -> bool:
        """Exchange hellos with a new generation, and check them. False: a fault came."""
        session = self.session
        self._answer()
        version = session.version
        what = "renewed parameters" if self._owes else self.purpose
        purpose = hashlib.sha256(what.encode()).digest()[:8]
        try:
            hellos = hello(session, self._kind, self._image.digest, purpose)
        except LeftError:
            raise
        except MarkedError:
            return False
        alive = [rank for rank, one in enumerate(hellos) if one.kind != HELPER]
        meets = any(hellos[rank].kind & _MEETS for rank in alive)
        for rank in alive:
            if (hellos[rank].digest, hellos[rank].version) != (self._image.digest, version):
                raise PeerError(
                    f"rank {rank} has other parameters than rank {session.world.rank}; all ranks "
                    "run one program with one network"
                )
            if hellos[rank].purpose != purpose and not meets:
                raise PeerError(
                    f"after step {version} of the state rank {session.world.rank} makes "
                    f"{self.purpose}, and rank {rank} something else: in a loop of `with "
                    "state.step()` what all ranks do together, such as state.once(), belongs "
                    "within the step"
                )
        if len(alive) < session.world.size:
            self._kind &= _MEETS
            gasp(self._engine, session, saves=alive[0] == session.world.rank)
            return False  # The job is about to end, or the rank that saves was lost.
        if not self._all_meet([one.kind for one in hellos]):
            return False
        self._kind = SURVIVOR
        return True

    def _answer(self) -> None:
        """Let the session's groups answer collectives from now on."""
        self._engine.set_phase(Phase.LIVE)
        _operators.on_echo(None)
        _operators.clear()

    def _all_meet(self, kinds: list[int]) -> bool:
        """Return whether all ranks or none are at a callback's collective. Raise if past it."""
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
            self.session.world.barrier()  # Ends by a fault: ranks that are past it start again.
        return False

    def step(
        self,
        compute: Callable[[], Any],
        describe: Callable[[Any], dict[str, Any]],
        may_differ: bool = True,
        is_first: bool = False,
    ) -> Any:
        """Make step n + 1: compute() changes the parameters. Return its result.

        A step that a fault made void is made again. `describe(result)` returns the objects after
        it. `may_differ`: parameters may have changed since step n. `is_first`: of its epoch.
        """
        self.look(may_differ)
        while True:
            self.begin(is_first)
            result = self._compute(compute)
            if self.end(partial(describe, result)):
                return result

    def look(self, may_differ: bool = True) -> None:
        """Check before a step that no collective was cut short, and note changes since step n."""
        self._check_between()
        if may_differ:
            self._look()

    def begin(self, is_first: bool = False) -> None:
        """Begin a step, or begin the same step once more. `is_first`: of its epoch."""
        self.begin_version()
        is_step = self.purpose == "a step"
        if self.session.rehearses:
            if not is_step:
                what = f"it comes to {self.purpose}, not to a step"
                self._engine.worker.rehearsal_differs(what)
            self._answer()
        if is_step:
            self.sampled.begin(is_first)
        if self.sampled.on:
            self._image.show(self.sampled.begun)
            if _bulk.current is not None and not self.session.rehearses:
                place = self._engine.place
                _bulk.current.lend(recording_folder(place.directory, place.rank))
        _operators.strict(False)

    def end(self, describe: Callable[[], dict[str, Any]]) -> bool:
        """End a step. False: it is void, all is as before it, and it has to be made again."""
        status, text = _operators.status()
        if status is Status.ABORTED:  # Never stage what echoes have touched.
            self.give_up()
        elif status is not Status.OK:
            raise PeerError(text or f"a collective of this step was not made ({status.name})")
        elif self._commit(describe):
            if self._owes:
                self.begin_version()
            _operators.strict(True)  # Outside of steps, nobody looks at the status.
            return True
        say_void(self.n + 1, self._engine.rank)
        return False

    def hear(self, losses: Losses, n: int, wish: bool = False) -> bool:
        """Exchange wishes to stop, and what losses of step n are like; return the first.

        MarkedError: the step is void, or has to be made again because of a loss.
        """
        given = tell(self.session, HEARD, wish, *losses.mine(n))
        losses.judge(n, [rest for _, *rest in given])
        if losses.act is Act.END:
            raise self._engine.worker.fail(losses.why)
        if losses.act is not Act.COMMIT and self._engine.rank == 0:
            say(losses.why)
        if losses.act is Act.MAKE_AGAIN:
            raise MarkedError(losses.why)
        return any(wish for wish, *_ in given)

    def give_up(self) -> None:
        """Bring everything back to what it was before the step under way."""
        _operators.clear()
        self.restore()

    @property
    def aborted(self) -> bool:
        """Whether a fault has made the step under way void, as far as this process knows."""
        return _operators.status()[0] is Status.ABORTED

    def _look(self) -> None:
        """Note the changes since step n, which restore() keeps."""
        self._between = self.session.version, self.changes()

    def _compute(self, compute: Callable[[], Any]) -> Any:
        before, self.under_way = _operators.count(), False
        try:
            return compute()
        except BaseException:
            # If a collective was made, other ranks may have gone on with this rank's data.
            self.under_way = _operators.count() != before
            raise

    def _check_between(self) -> None:
        status, text = _operators.status()
        if status is not Status.OK and self._engine.phase is Phase.LIVE:
            raise MarkedError(
                "a collective between two steps was not completed, since another process was "
                f"lost; this process ends, so that it starts again from the last step ({text})"
            )

    def _commit(self, describe: Callable[[], dict[str, Any]]) -> bool:
        """End the step. False: it is void, and everything is as before it."""
        try:
            objects = describe()  # May exchange with the others.
            if self._served:
                self._served.push()
        except LeftError:
            raise
        except MarkedError:
            self.give_up()
            return False
        objects[_ALIKE] = found = self._find_alike()
        self._image.write(self.next, objects, self.sampled.kept)
        self.sampled.on = False
        step = _core.Step(loss=objects.get("loss", 0.0), used=self._image.used)
        if self.session.end_step(step):
            self.restore()
            return False
        self.objects = objects
        self._hold(found)
        return True

    def _find_alike(self) -> bytes:
        """Return which parameters are alike, as far as this process or its predecessor knows.

        A successor may come to a reducer later than its predecessor did.
        """
        known = len(self._engine.alike), self._alike
        if known != self._known:
            found = self._image.alike(self._engine.alike)
            if self._alike:
                found = bytes(map(operator.or_, found, self._alike))
            self._known = known[0], found
        return self._known[1]
