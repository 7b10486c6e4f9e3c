"""Import once what all processes of a job on this host need, and fork each of them from here.

For every process of the job, msrun starts a `nursling` (apps/python/nursling.cc). The first of them
starts this process. Each nursling asks here for a fork with its environment, folder and
descriptors, and ends as the fork ends. A fork does nothing until its nursling tells it to, since
the nursling may have given up and become the program itself. So it does if its request is refused,
as when the environment differs. The face that starts the nursery (holdfast/mindspore/_nursery.py)
says what to import.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast._nursery_request import Request, read

_ANSWER: Final = struct.Struct("<Ii")  # As in apps/python/nursling.cc.
_REFUSED, _STARTED, _ENDED = range(3)
_GROWN: Final = b"+"  # As in nursling.cc: ends the name of the socket of a nursery that can fork.
_SPARE_FD: Final = 3  # Where a spare has the pipe that brings its place.
_OWN_FDS: Final = 10  # The nursery's begin here; those that a request brings lie below.


class _Worker(NamedTuple):
    pid: int
    connection: socket.socket


def _above(descriptor: int) -> int:
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OWN_FDS)
    os.close(descriptor)
    return copy


def _is_alone() -> bool:
    """Return whether this process has no thread that a fork would lack.

    The threads of NumPy's OpenBLAS do not count: they end before every fork and start anew when
    they are needed.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(100):  # /proc lists a thread a little longer than it runs.
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.001)
    return False


class _AgentWatch:
    """An import hook: every import asks it, and it ends this process if the agent is gone."""

    def __init__(self, agent: int) -> None:
        self._poll = select.poll()
        self._poll.register(agent, select.POLLIN)

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Find no module."""
        if self._poll.poll(0):
            os._exit(0)


class Nursery:
    """Answers requests until the agent is gone."""

    def __init__(self, listener: socket.socket, agent: int, prepare: Callable[[], None]) -> None:
        """Listen. prepare() imports at the first request, which brings the environment."""
        self._prepare = prepare
        self._listeners = [listener]
        self._agent = agent  # A pidfd.
        self._workers: dict[int, _Worker] = {}  # By pidfd.
        self._shared: dict[str, str] | None = None  # The first request's; the others need the same.
        self._imported: dict[str, str] = {}  # Variables that the import has set.
        self._said = b""  # Output during the import.
        self._refuses = False
        self._selector = selectors.PollSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(agent, selectors.EVENT_READ)

    def serve(self) -> Request:
        """Fork processes; return in each of them, with its request."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, socket.socket):
                    request = self._accept(key.fileobj)
                    if request is not None:
                        return request
                elif key.fd == self._agent:
                    self._end()
                else:
                    self._ended(key.fd)

    def _end(self) -> None:
        """End, and end all forked processes, as the agent is gone."""
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(worker.pid), signal.SIGKILL)
        os._exit(0)

    def _ended(self, pidfd: int) -> None:
        worker = self._workers.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(worker.pid, 0)
        with contextlib.suppress(OSError), worker.connection as connection:
            connection.send(_ANSWER.pack(_ENDED, status))

    def _accept(self, listener: socket.socket) -> Request | None:
        """Answer one request; return it in the process that was forked for it."""
        connection, _ = listener.accept()
        try:
            request = read(connection)
        except (OSError, ValueError, struct.error):
            connection.close()
            return None
        if self._fits(request):
            with contextlib.suppress(OSError):
                if self._fork(request) == 0:
                    return request
                return None
        with contextlib.suppress(OSError):
            connection.send(_ANSWER.pack(_REFUSED, 0))
        request.close()
        return None

    def _fits(self, request: Request) -> bool:
        if self._shared is None:
            self._shared = request.shared()
            try:
                self._import(request)
            except BaseException:  # Also SystemExit. Each process will report the error itself.
                self._refuses = True
            # The agent's signals to a forked process may reach this one as well. It has to stay, to
            # report how that process ends.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            self._listen_grown()
        return not self._refuses and request.shared() == self._shared

    def _import(self, request: Request) -> None:
        os.environ.clear()
        os.environ.update(request.shared())
        os.chdir(request.folder)
        sys.path[0] = os.path.dirname(os.path.realpath(request.argv[2]))
        usual = [_above(os.dup(stream)) for stream in (1, 2)]
        said = os.memfd_create("nursery")
        for stream in (1, 2):
            os.dup2(said, stream)
        watch = _AgentWatch(self._agent)
        sys.meta_path.insert(0, watch)
        try:
            self._prepare()
        finally:
            sys.meta_path.remove(watch)
            os.lseek(said, 0, os.SEEK_SET)
            self._said = os.read(said, 1 << 20)
            os.close(said)
            for stream, former in zip((1, 2), usual):
                os.dup2(former, stream)
                os.close(former)
        if not _is_alone():
            raise RuntimeError("a thread was started by the import: no fork is safe any more")
        begun = request.shared()
        self._imported = {k: v for k, v in os.environ.items() if begun.get(k) != v}
        gc.collect()
        gc.freeze()

    def _listen_grown(self) -> None:
        grown = socket.socket(socket.AF_UNIX)
        grown.bind(bytes(self._listeners[0].getsockname()) + _GROWN)
        grown.listen(128)
        self._listeners.append(grown)
        self._selector.register(grown, selectors.EVENT_READ)

    def _fork(self, request: Request) -> int:
        """Fork. Return 0 in the new process, once that has become what the request asks for."""
        free = os.dup(self._agent)  # Fails before the fork if no descriptor is left for the pidfd.
        try:
            pid = os.fork()
        finally:
            os.close(free)
        if pid == 0:
            self._become(request)
            return 0
        pidfd = os.pidfd_open(pid)
        for descriptor in request.descriptors:
            os.close(descriptor)
        self._workers[pidfd] = _Worker(pid, request.connection)
        self._selector.register(pidfd, selectors.EVENT_READ)
        return pid

    def _become(self, request: Request) -> None:
        """Turn a fork of the nursery into the process that the request describes."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._agent)
        for pidfd, worker in self._workers.items():
            os.close(pidfd)
            worker.connection.close()
        _wait_for_word(request)
        for target, descriptor in enumerate(request.descriptors):
            os.dup2(descriptor, target, inheritable=True)
            os.close(descriptor)
        if len(request.descriptors) <= _SPARE_FD:
            os.close(_SPARE_FD)  # It only kept the number from other use.
        os.chdir(request.folder)
        with contextlib.suppress(OSError):  # A waiting spare's runs at idle priority.
            policy = os.sched_getscheduler(request.nursling)
            os.sched_setscheduler(0, policy, os.sched_getparam(request.nursling))
        os.environ.clear()
        os.environ.update(request.environment)
        os.environ.update(self._imported)
        if self._said:
            os.write(2, self._said)


def _wait_for_word(request: Request) -> None:
    """Wait until the nursling says "begin". If it is gone or has become the program, exit."""
    try:
        os.setpgid(0, request.nursling)
        request.connection.send(_ANSWER.pack(_STARTED, os.getpid()))
        begins = bool(request.connection.recv(1))
    except OSError:
        begins = False
    if not begins:
        os._exit(1)  # If the nursling still waits, it hears of this and starts by itself.


def _pidfd_of(agent: str) -> int | None:
    """Return a pidfd of the agent of HOLDFAST_AGENT; None: the agent is gone, or unknown."""
    with contextlib.suppress(OSError, ValueError):
        pid, began, _ = agent.split(":")
        pidfd = os.pidfd_open(int(pid))
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[19] == began:
            return pidfd
    return None


def serve(prepare: Callable[[], None]) -> Request | None:
    """Serve on the socket of argv[1]; return in each forked process, with its request.

    None: the agent of HOLDFAST_AGENT is gone.
    """
    listener = _above(int(sys.argv[1]))
    null = os.open(os.devnull, os.O_RDWR)
    if null != _SPARE_FD:
        os.dup2(null, _SPARE_FD)
        os.close(null)
    agent = _pidfd_of(os.environ.get("HOLDFAST_AGENT", ""))
    if agent is None:
        return None
    return Nursery(socket.socket(fileno=listener), agent, prepare).serve()
