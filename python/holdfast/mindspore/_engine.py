"""Hold one process's side of its job: place, groups by name, and who answers collectives."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast import _core, _exchange
from holdfast._errors import UserError
from holdfast._say import say
from holdfast._seat import Phase, Seat
from holdfast.mindspore import _operators, _role, _script
from holdfast.mindspore._imported import COMPILERS, either
from holdfast.mindspore._served import Served
from mindio_ttp import _switches

# MindSpore's names of the group of all ranks, by device.
_WORLDS: Final = ("hccl_world_group", "nccl_world_group", "mccl_world_group", "")
PLAIN_BYTES: Final = 4096
_SIZE_FILE: Final = "mindspore-private-bytes"


class Engine(Seat):
    """A process's side of its job. There is one per process."""

    def __init__(self) -> None:
        """Start the worker. The role is hidden from MindSpore, whose own cluster must not start."""
        super().__init__()
        self.gasps: Final = _switches.gasp(os.environ)
        self.tft: Final = bool(os.environ.get("MS_ENABLE_TFT"))
        self.by_agent: Final = bool(os.environ.get("HOLDFAST_ATTEMPT"))
        # With a role in the environment, MindSpore's C++ would form its own cluster.
        for name in ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT"):
            os.environ.pop(name, None)
        self.phase = Phase.EARLY
        self.session: _core.Session | None = None
        self.rehearsed: int | None = None  # The rank that this spare rehearses.
        self.trains = False  # A Model.train has begun.
        self.alike: dict[int, Any] = {}  # By id: parameters whose gradients all ranks sum.
        if self.worker.solo:
            _ = self.place
        self._names: dict[str, int] = {}
        self._members: list[tuple[int, ...]] = [tuple(range(self.world_size))]
        self._used: dict[int, _exchange.Group | None] = {}
        self.numbers: Final = _operators.Numbers()
        self.served: Final = Served(self)

    def begin(self) -> None:
        """Install what operators call before they exchange gradients or give an echo."""
        self._watch()

    # ---- The place in the job -------------------------------------------------------------------

    @property
    def place(self) -> _core.Place:
        """Wait for the place; the first time, also set the rank's variables in os.environ."""
        if self._place is None:
            place = super().place
            if self.by_agent or "RANK_ID" not in os.environ:
                _role.tell_rank(os.environ, place.rank)
            os.environ.setdefault("MS_NODE_ID", str(place.rank))
        return super().place

    @property
    def rehearsing(self) -> bool:
        """Whether this spare runs the program before it has its place."""
        return self.rehearsed is not None and self._place is None

    @property
    def rank(self) -> int:
        """The rank. A spare waits for it, unless it rehearses for its rank."""
        return self.place.rank if self.rehearsed is None else self.rehearsed

    # ---- Groups ---------------------------------------------------------------------------------

    def create_group(self, name: str, ranks: Sequence[int]) -> None:
        """Note the ranks of a group. UserError: the name has others, or there are no such ranks."""
        members = tuple(int(rank) for rank in ranks)
        if name in _WORLDS:
            raise UserError(f"a group can not be called '{name}', which is the group of all ranks")
        if name in self._names:
            if self._members[self._names[name]] != members:
                raise UserError(f"group '{name}' was created before with other ranks")
            return
        bad = [rank for rank in members if not 0 <= rank < self.world_size]
        if bad or len(set(members)) != len(members) or not members:
            raise UserError(
                f"group '{name}' has ranks {list(members)}; allowed are different ranks from 0 to "
                f"{self.world_size - 1}"
            )
        if members not in self._members:
            if len(self._members) == _operators.most_groups():
                raise UserError(
                    f"group '{name}' is one too many: a program has at most "
                    f"{len(self._members) - 1} groups of different ranks besides that of all"
                )
            self._members.append(members)
        # Equal ranks are the same group: its collectives come one after the other.
        self._names[name] = self._members.index(members)

    def group(self, name: str) -> int:
        """Return the number of a group."""
        if name in _WORLDS:
            return 0
        if name not in self._names:
            raise UserError(f"there is no group '{name}'; create_group('{name}', ranks) makes it")
        return self._names[name]

    def members(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a group, in its order."""
        return self._members[self.group(name)]

    def place_in(self, name: str) -> tuple[int, int]:
        """Return this rank's place in a group (0 if it is not in it) and the group's size."""
        members = self.members(name)
        return members.index(self.rank) if self.rank in members else 0, len(members)

    def use(self, name: str, by_model: bool = False) -> int:
        """Return the number of a group, and connect it. `by_model`: a Model will use it."""
        index = self.group(name)
        if index not in self._used:
            self._used[index] = None
            if self._began_anew(by_model):
                self._begin_plain()  # Connects the group, too.
            else:
                self._connect(index)
        return index

    def _began_anew(self, by_model: bool) -> bool:
        """Return whether all ranks began again with this one, as in a loop of the program's own.

        No State and no Model.train keeps such a loop's steps, so a fault makes all start from the
        top. The others then make the same collectives as this rank, at the same time: these must be
        real from the first one on, and an echo would be wrong. `by_model`: as in use().
        """
        if self.phase is not Phase.EARLY or self.rehearsing or self.world_size == 1:
            return False
        if not self.restarted or self.session is not None:
            return False
        known = private_bytes(self.place.directory)
        if known is None and by_model:
            return False  # Model.train is to come, in another file than the script.
        protected = _script.calls_train() or _script.has_state()
        return known in (None, PLAIN_BYTES) and not protected

    def number(self, group: str, *kind: Any) -> int:
        """Return the number, equal on all ranks, of the operator that is made now."""
        return self.numbers.next((self.group(group), *kind), self.trains)

    def set_phase(self, phase: Phase) -> None:
        """Change who answers collectives."""
        if phase is self.phase:
            return
        self.phase = phase
        self._watch()
        for index in self._used:
            self._used[index] = None
            self._connect(index)

    def _watch(self) -> None:
        _operators.strict(self.phase in (Phase.EARLY, Phase.PLAIN))
        early = self.phase is Phase.EARLY
        _operators.on_training(self._begin_plain if early else None)
        _operators.on_echo(self._warn_alone if early else None)

    def _warn_alone(self) -> None:
        """Say that a collective before the training gets an echo. An operator calls this."""
        if self.world_size > 1 and self.restarted and not self.rehearsing:
            self.say_once(
                "this process takes another's place and is not with the others yet: a collective "
                "before Model.train, or before State, gives what this rank sends, as if all had "
                "sent the same"
            )

    def _begin_plain(self) -> None:
        """Begin a training in the program's own loop. An operator calls this."""
        try:
            if self.rehearses:
                self.worker.rehearsal_skips(
                    "the program trains in a loop of its own, without State (docs/mindspore.md)"
                )
            self._open_plain()
        except BaseException as error:  # C, which calls this, drops exceptions.
            say(str(error))
            os._exit(1)

    def begin_served(self) -> None:
        """Begin such a training, if no other has begun, before served parameters are used."""
        if self.phase is Phase.EARLY and not self.rehearsing:
            self._open_plain()

    def _open_plain(self) -> None:
        if self.world_size > 1 or self.served.parts:
            of_server = " (but for that of a parameter server)" if self.served.parts else ""
            self.say_once(
                "this program trains in a loop of its own, so it is not protected step by "
                f"step: after a fault{of_server} all processes start again from the top; with "
                "holdfast.mindspore.State(network, optimizer) it goes on (docs/mindspore.md)"
            )
            session = self.open(PLAIN_BYTES)
            session.join()
            session.begin_step()
        self.set_phase(Phase.PLAIN)
        if self.served.parts:
            self.served.begin()

    def _connect(self, index: int) -> None:
        _operators.connect(index, None)
        if self.rehearsing or self.phase is Phase.ECHO:
            return
        if self.world_size > 1 and self.rank not in self._members[index]:
            return
        group = self._open(index)
        self._used[index] = group
        _operators.connect(index, None if group is None else group.handle)

    def _open(self, index: int) -> _exchange.Group | None:
        members = self._members[index]
        digest = hashlib.sha256(repr(members).encode()).hexdigest()[:24]
        if self.session is not None:
            if index == 0:
                return self.session.world
            return self.session.group(members, f"ms-{digest}")
        if self.restarted:
            return None
        return self.worker.early_group(members, f"ms-{digest}")

    # ---- The session ----------------------------------------------------------------------------

    def open(self, private_bytes: int) -> _core.Session:
        """Open the state of this rank."""
        if self.session is not None:
            raise UserError(
                "a second training begins in this job: Model.train, a State, or gradients that "
                "were exchanged in a loop of the program's own came before; a job protects one of "
                "them: make the first part a job of its own that saves a checkpoint"
            )
        place = self.place
        self.session = self.worker.open(private_bytes=private_bytes, own_later=True)
        self.served.open(self.session)
        if place.directory:  # private_bytes() reads it, in a helper.
            note = Path(place.directory) / f"{_SIZE_FILE}.{place.rank}"
            note.write_text(str(private_bytes))
            note.rename(Path(place.directory) / _SIZE_FILE)
        self.session.end_on_exit()
        atexit.register(_finish)
        return self.session


def _finish() -> None:
    """Wait, at the end of the program, for operations that MindSpore still runs."""
    if getattr(sys, "last_value", None) is not None:
        return  # An exception has ended the program.
    try:
        either(COMPILERS)._pynative_executor.sync()  # Waits for graphs as well.
    except Exception as error:  # Had the program waited itself, this would have ended it.
        say(str(error))
        sys.stdout.flush()
        os._exit(1)


def private_bytes(directory: str) -> int | None:
    """Return the size of the states of a job's ranks; None: no rank has one yet."""
    try:
        return int((Path(directory) / _SIZE_FILE).read_text())
    except (OSError, ValueError):
        return None


engine: Engine | None = None


def start() -> Engine:
    """Return this process's engine; make it if there is none."""
    global engine
    if engine is None:
        engine = Engine()
        engine.begin()
    return engine
