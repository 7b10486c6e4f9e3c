"""The state of a training and its steps: a fault in step n costs at most step n."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from holdfast import _core
from holdfast._core import Status
from holdfast._errors import MarkedError, PeerError
from holdfast.mindspore import _operators
from holdfast.mindspore._engine import Engine, Phase, say
from holdfast.mindspore._image import Image

_HELLO: Final = struct.Struct("<Q16sQ")  # Who this is, what is kept, version.
SURVIVOR, RESTARTED, HELPER = range(3)


def hello(session: _core.Session, kind: int, digest: bytes) -> list[tuple[int, bytes, int]]:
    """Tell the others who this is and what it keeps; return what they say, in rank order."""
    mine = _HELLO.pack(kind, digest, session.version)
    everyone = bytearray(len(mine) * session.world.size)
    session.world.all_gather(mine, len(mine), everyone)
    found = [_HELLO.unpack_from(everyone, i * len(mine)) for i in range(session.world.size)]
    return [(int(kind), bytes(digest), int(version)) for kind, digest, version in found]


class State:
    """What one network's steps depend on; version n of the session is the state after n steps."""

    def __init__(self, engine: Engine, parameters: list[Any], objects: dict[str, Any]) -> None:
        """Open the state and join the others: then all is as after the last step of this rank.

        At the first start parameters become as rank 0's. `objects`: what is kept besides.
        """
        self._engine = engine
        self._image = Image(parameters, objects)
        self.objects = objects
        session = engine.open(self._image.bytes)
        self._session = session
        self.on_helper: Callable[[bool], None] | None = None
        self._greeted = 0
        self.under_way = False
        self._kind = RESTARTED if engine.restarted else SURVIVOR
        if session.fresh:
            self._image.write(session.private(0), objects)
        session.join()
        self.restore()
        engine.set_phase(Phase.ECHO)

    @property
    def n(self) -> int:
        """Steps that are done."""
        return self._session.version

    @property
    def session(self) -> _core.Session:
        """The session."""
        return self._session

    def restore(self) -> None:
        """Bring parameters and objects to what they were after step n."""
        self.objects = self._image.read(self._session.private(self._session.version))

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
            _operators.clear()
            if self._greet():
                self._greeted = session.generation
                return

    def _greet(self) -> bool:
        """Tell the others who this is and what it keeps. False: a fault came."""
        session = self._session
        version = session.version
        try:
            hellos = hello(session, self._kind, self._image.digest)
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
        self._kind = SURVIVOR
        if len(alive) < session.world.size:
            assert self.on_helper is not None
            self.on_helper(alive[0] == session.world.rank)
            return False  # The job is about to end, or the one who saves was lost.
        return True

    def step(self, compute: Callable[[], Any], describe: Callable[[Any], dict[str, Any]]) -> Any:
        """Make step n + 1: compute() changes the parameters. Return its result.

        A step that a fault made void is made again. `describe(result)`: the objects after it.
        """
        engine = self._engine
        self._check_between()
        while True:
            self._begin()
            result = self._compute(compute)
            status, text = _operators.status()
            if status is Status.ABORTED:  # What echoes have touched is never staged.
                _operators.clear()
                self.restore()
            elif status is not Status.OK:
                raise PeerError(text or f"a collective of this step was not made ({status.name})")
            elif not self._commit(describe(result)):
                return result
            if engine.rank == 0:
                say(f"step {self.n + 1} was void, it is made again")

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
