"""Many hosts on one machine, of Linux namespaces: for tests and demonstrations. docs/testing-hosts.md says how.

    with Fleet.up(2) as fleet:
        server = fleet.popen(0, ["./server"])
        fleet.run(1, ["ping", "-c", "1", fleet.address(0)], check=True)
        fleet.kill(1)      # Silently: nobody hears that it ends.
        fleet.up_again(1)

A host is its index. A fleet ends with its `with`, and with the process that made it. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN.
"""
import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import linux
from .folders import folder_of_fleets, locked, remove
from .host import address, address6
from .keeper import MOST
from .linux import HostsError

__all__ = ["Fleet", "HostsError"]
ANSWER_S = 120  # Only a hang takes so long.


class Fleet:
    """Some hosts. The fleet's keeper, reached by the fleet's folder, holds them."""

    def __init__(self, name: str = "default") -> None:
        """Refers to a fleet that is up already. Fleet.up makes one."""
        self.name = name
        self.folder = folder_of_fleets() / name
        self._started: dict[int, list[subprocess.Popen[Any]]] = {}
        self._keeper: subprocess.Popen[bytes] | None = None

    # ---- The fleet ----

    @classmethod
    def up(cls, count: int, name: str | None = None, *, shared: Sequence[str | Path] = (), owner: int | None = -1) -> "Fleet":
        """Makes a fleet of host0 to host(count - 1). It ends with the process `owner`; -1: with this process; None: never.

        A host has its own /dev/shm and /tmp. It shares all other folders with this machine, as by a shared file system.
        `shared`: folders beneath these two that it shares as well.
        """
        if why := linux.lacking():
            raise HostsError(why)
        if not 1 <= count <= MOST:
            raise HostsError(f"{count} hosts: a fleet has 1 to {MOST}")
        folders = [str(Path(path).resolve()) for path in shared]
        for path in folders:
            if not os.path.isdir(path):
                raise HostsError(f"{path} is no folder, so the hosts cannot share it")
        fleet = cls(name or f"of-{os.getpid()}")
        watched = -1
        try:
            watched = -1 if owner is None else os.pidfd_open(os.getpid() if owner == -1 else owner)
            with locked(fleet.folder.parent), fleet._claim() as listener:
                with open(fleet.folder / "keeper.log", "wb") as log:
                    fleet._keeper = subprocess.Popen(
                        [sys.executable, "-P", "-c", "import sys; from fleet.keeper import started; started(sys.argv[1:])",
                         str(fleet.folder), str(count), str(listener.fileno()), str(watched), *folders],
                        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}, cwd="/", start_new_session=True,
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener.fileno(), *([watched] if watched >= 0 else [])])
        except ProcessLookupError:
            raise HostsError(f"there is no process {owner} that could own the fleet") from None
        finally:
            if watched >= 0:
                os.close(watched)
        try:
            fleet.status()  # The keeper answers once all hosts are up.
        except BaseException:
            fleet._end_keeper(fleet._keeper.pid)
            raise
        return fleet

    def _claim(self) -> socket.socket:
        """Binds the socket of the new keeper. The folder of a keeper that died is taken over: its hosts died with it."""
        if "/" in self.name or self.name in ("", ".", ".."):
            raise HostsError(f"{self.name!r} is no name for a fleet: it becomes a folder's name in {self.folder.parent}")
        if self._is_up():
            raise HostsError(f"a fleet {self.name!r} is up: take another --name, or end it (tools/hosts down --name {self.name})")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "socket"))
        listener.listen(16)
        return listener

    def down(self) -> None:
        """Ends all processes of all hosts, and the hosts. If the fleet is not up, only removes its folder."""
        try:
            keeper, _ = self._ask("down")
        except HostsError:
            if not self._keeper:
                self._clear()
                raise
            keeper = {"keeper": self._keeper.pid}
        self._bury(range(MOST))
        self._end_keeper(keeper["keeper"])

    def _end_keeper(self, pid: int) -> None:
        """Waits for the keeper's end, by SIGKILL if need be. All that is left ends with it."""
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            try:
                if not select.select([ended], [], [], linux.COMMAND_S)[0]:
                    os.kill(pid, 9)
                    select.select([ended], [], [])
            finally:
                os.close(ended)
        if self._keeper:
            self._keeper.wait()
        self._clear()

    def _clear(self) -> None:
        with locked(self.folder.parent):
            if not self._is_up():  # Another fleet may have taken the name since.
                remove(self.folder)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    # ---- Its hosts ----

    def address(self, host: int) -> str:
        return address(host)

    def address6(self, host: int) -> str:
        return address6(host)

    def popen(self, host: int, command: Sequence[str | Path], *, dies_with_caller: bool = False, **options: Any) -> subprocess.Popen[Any]:
        """Starts a command on a host. Signals to the Popen, and its exit code, are the command's own."""
        reply, spaces = self._ask("enter", host=host)
        folder = str(options.pop("cwd", None) or os.getcwd())
        try:
            if not os.path.isdir(f"/proc/{reply['pid']}/root{folder}"):
                raise HostsError(f"host{host} has no folder {folder}: /tmp and /dev/shm are its own; share it "
                                 f"(up --share DIR) or start the command elsewhere (cd /, cwd=\"/\")")
            own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            try:
                linux.setns(spaces[0], linux.CLONE_NEWPID)  # For children of this thread.
                started = subprocess.Popen([str(word) for word in command],
                                           preexec_fn=_entering(spaces[1:], folder, dies_with_caller), **options)
            finally:
                linux.setns(own, linux.CLONE_NEWPID)
                os.close(own)
        finally:
            for descriptor in spaces:
                os.close(descriptor)
        self._started.setdefault(host, []).append(started)
        return started

    def run(self, host: int, command: Sequence[str | Path], *, input: Any = None, timeout: float | None = None,
            check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Does as subprocess.run(), on a host."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        if options.pop("capture_output", False):
            options["stdout"] = options["stderr"] = subprocess.PIPE
        with self.popen(host, command, **options) as started:
            try:
                out, err = started.communicate(input, timeout)
            except BaseException:
                started.kill()
                raise
        done = subprocess.CompletedProcess(started.args, started.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def kill(self, host: int) -> None:
        """Loses a host: drops all packets from and to it, then sends SIGKILL to all its processes."""
        self._ask("kill", host=host)
        self._bury([host])

    def up_again(self, host: int) -> None:
        """Makes a fresh host in place of a killed one, with its name and addresses. Cuts stay."""
        self._ask("up-again", host=host)

    def cut(self, first: int | None, second: int | None = None, *, one_way: bool = False) -> None:
        """Drops what two hosts send to each other, or a host and all others. one_way: only what the first sends to the second."""
        self._ask("cut", first=first, second=second, one_way=one_way)

    def heal(self, first: int | None = None, second: int | None = None, *, one_way: bool = False) -> None:
        """Takes back cuts: all, those of a host, or those between two."""
        self._ask("heal", first=first, second=second, one_way=one_way)

    def delay(self, host: int, time: str) -> None:
        """Delays what goes to a host, and what comes from it, by a time such as "5ms"; "" takes it back. Needs netem."""
        self._ask("delay", host=host, value=time)

    def rate(self, host: int, rate: str) -> None:
        """Limits what goes to a host, and what comes from it, to a rate such as "100mbit"; "" takes it back."""
        self._ask("rate", host=host, value=rate)

    def status(self) -> dict[str, Any]:
        return self._ask("status")[0]

    # ---- The keeper is asked ----

    def _bury(self, hosts: Sequence[int]) -> None:
        """Reaps the dead processes that this process started on hosts: a host's first process can not end before that."""
        for host in hosts:
            for started in self._started.pop(host, []):
                started.wait()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(self.folder / "socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            raise HostsError(f"no fleet {self.name!r} is up (looked in {self.folder}): tools/hosts up N --name {self.name}") from None
        return connection

    def _is_up(self) -> bool:
        try:
            self._connect().close()
        except HostsError:
            return False
        return True

    def _ask(self, verb: str, **more: Any) -> tuple[dict[str, Any], list[int]]:
        with self._connect() as connection:
            connection.sendall(json.dumps({"verb": verb, **more}).encode() + b"\n")
            said, descriptors = b"", []
            while not said.endswith(b"\n"):
                part, more_descriptors, _, _ = socket.recv_fds(connection, 65536, len(linux.KINDS))
                descriptors += more_descriptors
                said += part
                if not part:
                    log = self.folder / "keeper.log"
                    raise HostsError(f"the keeper of {self.name!r} ended: {log.read_text().strip() if log.exists() else 'it left no word'}")
        reply: dict[str, Any] = json.loads(said)
        if "error" in reply:
            raise HostsError(reply["error"])
        return reply, descriptors


def _entering(spaces: Sequence[int], folder: str, dies_with_caller: bool) -> Callable[[], None]:
    """Returns what a child does between fork and exec."""
    caller = os.pidfd_open(os.getpid()) if dies_with_caller else -1

    def enter() -> None:
        if dies_with_caller:
            linux.die_with_parent()
            if select.select([caller], [], [], 0)[0]:
                os._exit(1)
        for descriptor in spaces:
            linux.setns(descriptor)
        os.chdir(folder)  # The root has changed, so enter the folder again.

    return enter
