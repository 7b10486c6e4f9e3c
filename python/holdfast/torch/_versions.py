"""The versions of what State keeps: begun, committed or void, and restored.

Version 0 of the session holds what each rank began with. Version 1 gives all ranks the same where
DistributedDataParallel wants that. Then each step, and each result of state.once(), makes one.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

from holdfast import _core, _versions
from holdfast._abi import check
from holdfast._errors import LeftError, MarkedError, WorldError
from holdfast._guards import memory_lost, pages_lost
from holdfast._losses import HEARD, Act, Losses
from holdfast._say import say
from holdfast._seat import Phase
from holdfast._versions import told
from holdfast.torch import _ddp, _private
from holdfast.torch._engine import Engine
from holdfast.torch._gradients import Gradients
from holdfast.torch._greeting import Again, Hello, greet, greet_again
from holdfast.torch._image import Image, See
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local
from holdfast.torch._plan import Key
from holdfast.torch._position import Progress
from holdfast.torch._random import derive
from holdfast.torch._replicas import Replicas
from holdfast.torch._served import assign_all

_WISH: Final = struct.Struct("?")


class Versions(_versions.Versions):
    """The versions of one State. Not thread-safe."""

    def __init__(self, engine: Engine, kept: Kept, ddps: list[Any], progress: Progress) -> None:
        """Wait for the other ranks; bring everything to the last version, if there is one."""
        self._engine = engine
        self._kept = kept
        self._ddps = ddps
        self._progress = progress
        self._gradients = Gradients(kept)
        self._alike = Replicas(engine, kept, ddps)
        self._restarted = True  # The version under way is the first that this process begins.
        self._key: Key | None = None  # Of the result that is made; None: a step is.
        self._behind = True  # This process has not come to the step of the others yet.
        self._second_due = False  # Some rank has not, so they greet each other again later.
        self._at = 0  # The version that was restored or committed last.
        self._lost = memory_lost()  # Before everything was restored last.
        # The servers have made an update, or begun, and a version with its values has to follow.
        self._owes = False
        self.losses = Losses()
        self._join()

    def _join(self) -> None:
        engine = self._engine
        engine.own_use += 1
        with engine.echo():
            self._image = Image(self._kept, self._objects(), self._alike.common())
            if engine.seat.waits_spare:
                for ddp in self._ddps:
                    _ddp.rehearse(ddp, engine)
                engine.seat.worker.prepare(self._image.bytes)
        engine.own_use -= 1
        engine.at_end.append(self._image.release)
        rank = engine.seat.place.rank  # A spare waits here.
        if not engine.seat.worker.solo:
            self._image.agree(lambda mine: engine.early.first(f"room-{rank}", mine))
        session = engine.open(self._image.bytes, self._image.common)
        self._image.take = session.take
        self.open(session)
        engine.set_phase(Phase.ECHO)
        engine.in_step = True
        self._begin(restarted=True)
        while self.session.version == 0:
            self._equalise()
        engine.in_step = False

    def _equalise(self) -> None:
        """Make version 1: all ranks get rank 0's parameters and buffers of DDP modules."""
        self._engine.see_that_others_are_there()
        self._engine.set_phase(Phase.LIVE)
        for ddp in self._ddps:
            _private.equalise(ddp)
        assign_all(self._engine)
        if not self._commit(False):
            self.restore()
            self._begin(restarted=True)

    # ---- Begin ----------------------------------------------------------------------------------

    def begin(self, key: Key | None = None) -> None:
        """Begin a step; with `key`, a result. PeerError: a rank begins something else, or ended."""
        engine = self._engine
        if engine.phase is not Phase.LIVE:
            engine.set_phase(Phase.LIVE)
        engine.in_step = True
        self._key = key
        self._begin(restarted=False)
        if engine.too_late:
            engine.in_step = False
            engine.see_that_others_are_there()

    def _begin(self, restarted: bool) -> None:
        """Begin a version. In a new generation, first check that all ranks keep the same things.

        A version that is still open is given up, as if it had not begun. If another rank has ended,
        no version is begun, and `engine.too_late` says why.
        """
        engine = self._engine
        engine.settle()  # A step that an exception ended may have left some.
        engine.marked = False
        engine.too_late = ""
        try:
            self._begin_with_all(restarted)
        except LeftError as error:
            engine.too_late = str(error)
            self.restore()

    def _begin_with_all(self, restarted: bool) -> None:
        self._restarted = restarted
        while True:
            self._see_that_memory_is_whole()
            self.begin_version()
            self._see_that_memory_is_whole()
            if restarted or not self._second_due or self._greet_again():
                self._behind = self._behind and restarted
                return
            self.greeted = 0

    def _see_that_memory_is_whole(self) -> None:
        """End this process if it has lost pages between two steps.

        The program may have changed there what State keeps, and makes that change only once. A
        successor goes on from the last version, as after any death.
        """
        if memory_lost() == self._lost:
            return
        what = "memory errors have taken pages of what State keeps, between two steps"
        if self._engine.seat.worker.solo:
            raise WorldError(f"{what}, and this process trains alone: start it again")
        say(f"{what}: this process ends, and another one takes its place")
        os.kill(os.getpid(), signal.SIGKILL)

    def reformed(self) -> None:
        """Restore, unless this rank is at that version: a scheduler's step since then stays."""
        if self._at != self.session.version:
            self.restore()

    def greet(self) -> bool:
        """Tell the others what this rank keeps. False: a fault came."""
        mine = Hello(self._restarted, self._behind, self._kept.shapes(), self.session.version)
        hellos = greet(self.session, mine)
        if hellos is None:
            return False
        self._second_due = any(hello.behind for hello in hellos)
        if self._restarted and all(hello.restarted for hello in hellos):
            self._engine.set_phase(Phase.LIVE)  # All ranks are at the same line of the program.
            self._behind = self._second_due = False
        return True

    def _greet_again(self) -> bool:
        """Call greet_again() for what this rank begins. False: a fault came."""
        engine = self._engine
        is_step = self._key is None
        what = f"step {self._progress.n + 1}" if is_step else f"state.once(...) {self._key}"
        mine = Again(engine.asked, engine.guessed, self._behind, derive(what))
        if not greet_again(self.session, mine, what):
            return False
        self._second_due = False
        return True

    # ---- Parameters that servers keep -----------------------------------------------------------
    # The servers make their update when a version is committed: only then can its values be had. So
    # a second version follows each, which has them. It is of the same step.

    def begin_version(self) -> None:
        """Begin a version, as the base does, after the one that renews parameters, if it is due."""
        super().begin_version()
        while self._owes:
            self._renew()
            super().begin_version()

    def _renew(self) -> None:
        """Make the version under way. After a fault it stays due."""
        try:
            for served in self._engine.served:
                check(served.pull())
        except LeftError:
            raise
        except MarkedError:
            return
        self._owes = False
        with_gradients = any(key[0] == "gradient" for key in self.tensors())
        self._image.write(self.next, self._objects(), with_gradients)
        if not self._end():
            self.restore()

    def _end_and_renew(self) -> bool:
        """End a version, and make the one that is due after it. False: the first is void."""
        if not self._end():
            return False
        if self._owes:
            self.begin_version()
        return True

    # ---- End ------------------------------------------------------------------------------------

    def commit(self, has_updated: bool, may_wait: bool, see: See) -> bool:
        """End a step. False: it is void, and everything is as before it.

        `may_wait`: the program may do something else before it makes the step again. `see` is shown
        what is kept.
        """
        self._engine.settle()
        self._progress.n += 1
        if self._commit(has_updated, see):
            return True
        if not may_wait:  # Stop first, so that no rank waits for a copy of this state.
            with suppress(LeftError):  # The replay will raise it.
                self.session.begin_step()
        self.restore()
        return False

    def _commit(self, has_updated: bool, see: See = lambda *_: None) -> bool:
        engine, progress = self._engine, self._progress
        engine.settle()
        if engine.marked:  # Never stage what echoes have touched.
            return False
        progress.position.see_ahead()
        if progress.n and not self._hear():
            return False
        if progress.n and self.losses.act is not Act.COMMIT:
            return self._do_without(see)
        engine.push_tables()
        if engine.marked:
            return False
        begins = self.session.version == 0
        self._owes = any(begins or served.pushed for served in engine.served)
        gradients = self._gradients.end_step(has_updated)
        self._image.write(self.next, self._objects(), gradients, see)
        return self._end_and_renew()

    def _do_without(self, see: See) -> bool:
        """Do what is to be done with a step whose loss is bad. False: it is made again."""
        progress, losses = self._progress, self.losses
        if losses.act is Act.END:
            raise self._engine.seat.worker.fail(losses.why)
        if self._engine.seat.place.rank == 0 and not self._engine.seat.rehearses:
            say(losses.why)
        if losses.act is Act.MAKE_AGAIN:
            return False
        # Nothing of the step stays but its number and its place in the data.
        n, stopped, position = progress.n, progress.stopped, progress.position.objects()
        self.restore()
        progress.n, progress.stopped = n, stopped
        progress.position.restore(position)
        gradients = self._gradients.end_step(False)
        self._image.write(self.next, self._objects(), gradients, see)
        return self._end()

    def commit_result(self, key: Key, result: bytes) -> bool:
        """Commit a version that adds a result to the last one. False: it is void."""
        engine = self._engine
        engine.settle()
        if engine.marked:
            with suppress(LeftError):
                self.session.begin_step()
            return False
        results = {**self._progress.results, key: result}
        self.session.uses_committed()
        self._image.write_again(self.last, self.next, {"results": results})
        if not self._end():
            return False
        self._progress.results = results
        return True

    def _end(self) -> bool:
        at = self._progress.position
        position = _core.Position(at.epoch, at.index + at.own)
        step = _core.Step(position=position, used=self._image.used)
        if self.session.end_step(step):
            return False
        self._note()
        self._engine.asked = self._engine.guessed = False
        return True

    def _note(self) -> None:
        """Note that everything is as in the last version."""
        self._at = self.session.version
        if self._at:  # Version 0 is each rank's own.
            self.replicas.hold(self._alike.at(self._image.places), self._progress.n)

    def _hear(self) -> bool:
        """Exchange wishes to stop, and what the losses are like. False: a fault came."""
        session, progress = self.session, self._progress
        mine = (progress.wish, *self.losses.mine(progress.n))
        given = [mine] if session.world.size == 1 else told(session, HEARD, *mine)
        if given is None:
            return False
        progress.stopped = progress.stopped or any(wish for wish, *_ in given)
        self.losses.judge(progress.n, [rest for _, *rest in given])
        return True

    def hear_wishes(self) -> bool:
        """Return whether any rank wishes to stop. Requires: a version was begun."""
        given = told(self.session, _WISH, self._progress.wish)
        if given is None:
            self._engine.marked = True
            return False
        return any(wish for (wish,) in given)

    # ---- What is kept ---------------------------------------------------------------------------

    def _objects(self) -> dict[str, Any]:
        return {
            "progress": self._progress.objects(),
            "results": self._progress.results,
            "ddp": _ddp.begins_with(self._ddps),
            "gradients": self._gradients.objects(),
            "owes": self._owes,
        }

    def fill(self, view: memoryview) -> None:
        """Write version 0, perhaps into memory that a broken copy was in."""
        self._image.forget()
        self._image.write(view, self._objects(), with_gradients=False)

    def restore(self) -> None:
        """Bring everything to the last version."""
        lost, self._lost = pages_lost(), memory_lost()
        self.session.uses_committed()
        objects = self._image.read(self.last, self.see_makers)
        self._progress.restore(objects["progress"], objects["results"])
        self._gradients.restore(objects["gradients"])
        _ddp.restore(self._ddps, objects["ddp"], self._engine)
        self._owes = objects["owes"]
        self._gradients.watch()
        self._note()
        if pages_lost() != lost:  # It may have read zeros. The next step begins with a recovery.
            self._at = -1

    def repair(self, which: list[int]) -> None:
        """Set these replicas to the values that the last version has of them."""
        self.session.uses_committed()
        self._alike.take(which, self.tensors())

    def flip(self, which: int, byte: int, bit: int) -> None:
        """Flip a bit of what the program trains on, where a replica, by its place, comes from."""
        self._alike.flip(which, byte, bit)

    def tensors(self) -> dict[Key, Any]:
        """Return the tensors of the last version, without copies."""
        return self._image.tensors(self.last)

    def see_update(self, optimizer: Any) -> None:
        """Look at what an optimizer has updated."""
        self._gradients.see_update(optimizer)


class Between:
    """The changes that the program makes between two steps, such as a scheduler's step per epoch.

    The image of a step is made when the step ends, so it does not hold these changes. If the next
    step is void, a survivor gets them back by this object. A successor makes them again itself.
    """

    @torch.no_grad()
    def __init__(self, kept: Kept, image: dict[Key, Tensor]) -> None:
        """`image`: the tensors of the last step."""
        # Gradients count only if the image holds them: then they may have been zeroed since.
        self._with_gradients = any(key[0] == "gradient" for key in image)
        now = dict(kept.walk(self._with_gradients))
        self._tensors = {
            key: tensor.detach().clone()
            for key, tensor in now.items()
            if key not in image or not torch.equal(image[key], local(tensor).detach())
        }
        self._keys = set(now)
        self._distributed = {key for key, tensor in now.items() if local(tensor) is not tensor}
        self._objects = pickle.dumps(kept.objects(), pickle.HIGHEST_PROTOCOL)
        self._generators: list[tuple[torch.Generator, Tensor]] = []

    def note_order(self, generators: Sequence[torch.Generator]) -> None:
        """Have put_back() set these generators as they are now, after the order was drawn."""
        self._generators = [(generator, generator.get_state()) for generator in generators]

    @torch.no_grad()
    def put_back(self, kept: Kept) -> None:
        """Make the changes again. Requires: the last step was restored."""
        there = {**dict(kept.walk(False)), **self._tensors}
        tensors = {
            key: local(tensor).detach()
            for key, tensor in there.items()
            if key in self._keys and key[0] != "gradient"
        }
        kept.restore(tensors, self._distributed, pickle.loads(self._objects), with_gradients=False)
        for key, parameter in kept.parameters if self._with_gradients else ():
            value = self._tensors.get(("gradient", *key))
            if ("gradient", *key) not in self._keys:
                parameter.grad = None
            elif value is not None:  # In place: it may lie in one of DDP's buckets.
                old = parameter.grad
                parameter.grad = value.clone() if old is None else old.copy_(value)
        for generator, state in self._generators:
            generator.set_state(state)
