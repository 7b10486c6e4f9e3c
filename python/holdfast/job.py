"""Hold a place in the job: its rank, the environment that other libraries expect, its end."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast._abi import Optimizer
from holdfast._core import Place, Session, Worker
from holdfast._errors import UserError
from holdfast._hosts import local_rank_of
from holdfast._output import outlive_a_full_disk
from holdfast._ranks import are_known, wait_where_they_are_read
from holdfast._waiting import abandoned


class Job:
    """A process's link to its job; init() makes it.

    It asks for the rank as late as possible. A spare runs the program up to that point and waits
    there until it is needed.
    """

    def __init__(self, worker: Worker) -> None:
        """Hold the worker."""
        self.worker = worker
        self._place: Place | None = None
        self._owner = os.getpid()
        if lifeline := os.environ.get("HOLDFAST_LIFELINE"):  # An agent keeps the logs.
            outlive_a_full_disk()
            _note_joining(Path(lifeline))

    @property
    def place(self) -> Place:
        """Wait for the rank; the first time, also set RANK, WORLD_SIZE, ... in os.environ."""
        if self._place is None:
            self._place = self.worker.identity()
            publish(self._place, self.local_rank)
        return self._place

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.place.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the job."""
        return self.place.world_size

    @property
    def local_rank(self) -> int:
        """The place of this process among the ranks of its host."""
        return local_rank_of(self.worker.handle)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value for the whole job, unless the key has one already."""
        self.worker.put(key, value)

    def get(self, key: str, wait_s: float = 0) -> bytes | None:
        """Return the value of a key; None if it has none, also after `wait_s` seconds."""
        found = self.worker.get([key], wait_s)
        return None if found is None else found[1]

    def set(self, key: str, value: bytes, expected: int | None = None) -> int | None:
        """Set the value of a key that is at the expected version, and return its new version.

        `expected`: 0: the key has no value yet; None: whichever version it is at. Return None: the
        key is at another version, and nothing has changed.
        """
        return self.worker.set(key, value, expected)

    def read(self, key: str, wait_s: float = 0, newer_than: int = 0) -> tuple[bytes, int] | None:
        """Return a value of a key, newer than version `newer_than` (0: any), and its version.

        None: there is none within `wait_s` seconds.
        """
        return self.worker.read(key, newer_than, wait_s)

    @property
    def solo(self) -> bool:
        """Whether this process is a job of its own, without a launcher."""
        return self.worker.solo

    @property
    def bound_rank(self) -> int | None:
        """The rank that this spare was started for (`--spares all`), known without waiting."""
        return self.worker.bound_rank

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
        own_later: bool = False,
    ) -> Session:
        """Open this rank's state: parameters by name and number of float32 elements, private bytes.

        Without parameters, all of the state is in the private bytes. `own_private`: each rank has
        private bytes of its own. `own_later`: version 0 is rank 0's on all ranks, later versions
        are each rank's own. Neither: a rank that has lost its bytes gets those of another rank.
        """
        _ = self.place
        return self.worker.open(parameters, optimizer, private_bytes, own_private, own_later)

    def fail(self, reason: str) -> Exception:
        """Tell all processes that the job can not go on. The caller raises the returned error."""
        return self.worker.fail(reason)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner and not abandoned():
            self.worker.stop()


_job: Job | None = None


def init() -> Job:
    """Join the job that the environment names; return at once. A second call returns the same Job.

    The scheduler (MS_ROLE=MS_SCHED) and a parameter server (MS_PSERVER or MS_SERVER) serve the job
    and exit in here. Call it in the main thread.
    """
    global _job
    if _job is not None and _job._owner != os.getpid():
        raise UserError("a forked process has no place in the job; init() was called by its parent")
    if _job is None:
        _job = Job(Worker())
        _when_the_process_ends(_job._at_exit)
        if os.environ.get("MS_ROLE") in ("MS_PSERVER", "MS_SERVER"):
            _ = _job.place
    return _job


def _when_the_process_ends(call: Callable[[], None]) -> None:
    atexit.register(call)
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:  # A child ends by os._exit(), up to Python 3.13.
            util.Finalize(None, call, exitpriority=-1)  # After its own children were joined.


def _note_joining(lifeline: Path) -> None:
    """Let the launcher know that a lost process of this job can be replaced alone."""
    with contextlib.suppress(OSError):  # The job's folder may be gone, if the job has ended.
        lifeline.with_name("joined").touch(0o600)


def exit_code_of(status: object) -> int:
    """Return the code with which Python ends after SystemExit(status)."""
    return 0 if status is None else status if isinstance(status, int) else 1


def prepare_spare() -> None:
    """Have a spare wait where its program reads its rank."""
    wait_where_they_are_read(lambda: init().place)


def _rank_where_it_began(rank: int) -> int:
    """Return LOCAL_RANK on the host where the rank began. A move to another host keeps it."""
    for size in itertools.cycle(map(int, os.environ["_HOLDFAST_SIZES"].split())):
        if rank < size:
            return rank
        rank -= size
    return rank


def publish(place: Place, local_rank: int) -> None:
    """Set the variables that programs written for torchrun read, if they are not set yet."""
    are_known()
    rank, size = str(place.rank), str(place.world_size)
    if "_HOLDFAST_RESTART_TOKEN" in os.environ:  # `holdfast run` has numbered the hosts.
        local_rank = _rank_where_it_began(place.rank)
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": os.environ.get("MS_SCHED_HOST", "127.0.0.1"),
    }.items():
        os.environ.setdefault(name, value)
    if folder := os.environ.get("_HOLDFAST_ERRORS"):  # As in _shim.sh.
        os.environ.setdefault("TORCHELASTIC_ERROR_FILE", f"{folder}/error_{rank}.json")
