"""Hold a place in the job: the rank, the environment that other libraries expect, the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast._core import Optimizer, Place, Session, Worker
from holdfast._errors import UserError
from holdfast._output import outlive_a_full_disk
from holdfast._waiting import abandoned


class Job:
    """A process's link to its job; init() makes it.

    It asks for the rank as late as possible: a spare runs the program up to that point, and waits
    there until it is needed.
    """

    def __init__(self, worker: Worker) -> None:
        """Hold the worker."""
        self.worker = worker
        self._place: Place | None = None
        self._owner = os.getpid()
        if lifeline := os.environ.get("HOLDFAST_LIFELINE"):  # Of an agent, which keeps the logs.
            outlive_a_full_disk()
            _note_joining(Path(lifeline))

    @property
    def place(self) -> Place:
        """Wait for the rank; tell os.environ (RANK, WORLD_SIZE, ...) the first time."""
        if self._place is None:
            self._place = self.worker.identity()
            publish(self._place)
        return self._place

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.place.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self.place.world_size

    @property
    def solo(self) -> bool:
        """Whether this process is a world of its own, without a launcher."""
        return self.worker.solo

    @property
    def waits_spare(self) -> bool:
        """Whether asking for the rank would wait until this spare is needed."""
        return self.worker.waits_spare

    def open(
        self,
        parameters: Sequence[tuple[str, int]] = (),
        optimizer: Optimizer = Optimizer.SGD,
        private_bytes: int = 0,
        own_private: bool = False,
    ) -> Session:
        """Open this rank's state: names and float32 elements of parameters, private bytes.

        Without parameters all of the state is in the private bytes. `own_private`: they never come
        from another rank; else version 0 is rank 0's.
        """
        _ = self.place
        return self.worker.open(parameters, optimizer, private_bytes, own_private)

    def fail(self, reason: str) -> Exception:
        """Tell everybody that the job can not go on; raise what this returns."""
        return self.worker.fail(reason)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner and not abandoned():
            self.worker.stop()


_job: Job | None = None


def init() -> Job:
    """Join the job that the environment names; return at once; a second call gives the same.

    As its scheduler (MS_ROLE=MS_SCHED) serve the job and exit in here. Call it in the main thread.
    """
    global _job
    if _job is not None and _job._owner != os.getpid():
        raise UserError("a forked process has no place in the job; init() was called by its parent")
    if _job is None:
        _job = Job(Worker())
        _when_the_process_ends(_job._at_exit)
    return _job


def _when_the_process_ends(call: Callable[[], None]) -> None:
    atexit.register(call)
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:  # Such a one ends by os._exit(), up to Python 3.13.
            util.Finalize(None, call, exitpriority=-1)  # After its own children were joined.


def _note_joining(lifeline: Path) -> None:
    """Let the launcher know that a lost process of this job can be replaced alone."""
    with contextlib.suppress(OSError):  # It lies in the job's own folder, which goes with the job.
        lifeline.with_name("joined").touch()


def exit_code_of(status: object) -> int:
    """Return the code with which Python ends after SystemExit(status)."""
    return 0 if status is None else status if isinstance(status, int) else 1


RANKS: Final = ("RANK", "LOCAL_RANK", "ROLE_RANK")


class _Waiting(type(os.environ)):  # type: ignore[misc]
    """The environment of a spare: who asks it for a rank waits until there is one."""

    def __getitem__(self, key: str) -> str:
        if key in RANKS and _waits():
            _say_where(key)
            _ = init().place
        value: str = _USUAL.__getitem__(self, key)
        return value


def _waits() -> bool:
    os.environ.__class__ = _USUAL  # Whoever waits reads it, too.
    return _spare_of == os.getpid() and not any(name in os.environ for name in RANKS)


def _say_where(key: str) -> None:
    """Say which line waits: all that comes after it is left for the recovery."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_globals.get("__name__") in ("os", "collections.abc"):
        frame = frame.f_back
    if frame:
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        print(
            f"holdfast: this spare waits for its rank at {line}, which reads {key}", file=sys.stderr
        )


_USUAL: Final = type(os.environ)
_spare_of = 0  # The process; its children have no rank to wait for.


def prepare_spare() -> None:
    """Let this process, if it is a spare, wait where its program reads its rank in os.environ.

    Programs written for torchrun do so at their top; there a KeyError would end it.
    """
    global _spare_of
    if "RANK" not in os.environ and _has_the_pipe_of_a_spare():
        _spare_of = os.getpid()
        os.environ.__class__ = _Waiting


def _has_the_pipe_of_a_spare() -> bool:
    """Whether this process will be told its rank; what a spare starts inherits its words only."""
    given = os.environ.get("HOLDFAST_SPARE_FD", "")
    try:
        return stat.S_ISFIFO(os.fstat(int(given)).st_mode)
    except (OSError, ValueError):
        return False


def publish(place: Place) -> None:
    """Set the variables that programs written for torchrun read, where they are not set."""
    os.environ.__class__ = _USUAL  # To see what is set is not to wait for it.
    rank, size = str(place.rank), str(place.world_size)
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
    }.items():
        os.environ.setdefault(name, value)
