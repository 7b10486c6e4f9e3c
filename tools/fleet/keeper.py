"""The process that holds a fleet: the bridge lies in its network namespace, and every host is its child.

If the keeper ends, in whatever way, the kernel ends the hosts (PR_SET_PDEATHSIG), and with them all namespaces, links and
mounts. The keeper ends on request, and with its owner. Each connection brings one JSON object and is answered with one.
"""
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import host as hosts
from . import linux
from .folders import locked, remove
from .linux import HostsError

READY_S = 20  # These limits: only a hang takes so long.
DEAD_S = 20
MOST = 64


@dataclass
class Host:
    pid: int  # The host's first process. 0: the host is lost, or was never up.
    port: str
    pid_namespace: int = 0
    shape: dict[str, str] = field(default_factory=dict)  # "delay", "rate".


class Keeper:
    def __init__(self, folder: Path, shared: list[str]) -> None:
        self.folder, self.shared = folder, shared
        self.hosts: list[Host] = []
        self.cuts: set[tuple[int, int]] = set()  # (from, to): packets in this direction are dropped.
        self.ending: list[int] = []  # First processes that were killed and are not reaped yet.
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def begin(self, count: int) -> None:
        linux.unshare(linux.CLONE_NEWNET)
        linux.batch("ip", ["link add bridge0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0", "link set bridge0 up"])
        lines = [f"{address}\thost{i}" for i in range(count) for address in (hosts.address(i), hosts.address6(i))]
        (self.folder / "names").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost\n" + "\n".join(lines) + "\n")
        for index in range(count):
            self.hosts.append(Host(0, f"port{index}"))
            self.bring_up(index)

    # ---- Hosts come and go ----

    def bring_up(self, index: int) -> None:
        host = self.hosts[index]
        if host.pid:
            raise HostsError(f"host{index} is up; only a host that was killed comes up again")
        to_keeper, to_host, outside = os.pipe(), os.pipe(), linux.spaces_of("self")
        linux.unshare(linux.CLONE_NEWPID)  # Takes effect for the next child.
        pid = os.fork()
        if pid == 0:
            linux.close_others({to_keeper[1], to_host[0]})  # Else this host would hold the keeper's socket open.
            hosts.live(index, to_keeper[1], to_host[0], str(self.folder / "names"), self.shared, outside)
        linux.setns(self.own_pids, linux.CLONE_NEWPID)
        os.close(to_keeper[1])
        os.close(to_host[0])
        try:
            self._expect(index, to_keeper[0], b"1")
            linux.batch("ip", [f"link add {host.port} type veth peer name eth0 netns {pid}",
                               f"link set {host.port} master bridge0 up"])
            linux.batch("tc", [f"qdisc add dev {host.port} clsact", *(self._filter(cut, "add") for cut in sorted(self.cuts) if cut[1] == index)])
            os.write(to_host[1], b"g")
            self._expect(index, to_keeper[0], b"2")
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            self.ending.append(pid)
            raise
        finally:
            os.close(to_keeper[0])
            os.close(to_host[1])
        host.pid, host.pid_namespace, host.shape = pid, os.stat(f"/proc/{pid}/ns/pid").st_ino, {}

    def _expect(self, index: int, descriptor: int, word: bytes) -> None:
        if not select.select([descriptor], [], [], READY_S)[0]:
            raise HostsError(f"host{index} is not up after {READY_S} s")
        said = os.read(descriptor, 4096)
        if said != word:
            raise HostsError(said.decode() or f"the first process of host{index} ended before it was up")

    def kill(self, index: int) -> None:
        """Loses a host: first drops its packets, so that no other host hears of its end, then ends it."""
        host = self._up(index)
        linux.batch("tc", [f"filter add dev {host.port} {way} prio 1 protocol all bpf da bytecode {linux.DROP_ALL}"
                           for way in ("ingress", "egress")])
        os.kill(host.pid, signal.SIGKILL)
        self._dead([host])
        self._unlink(host)

    def _unlink(self, host: Host) -> None:
        """Removes the host's link at once: its name may be used again before the kernel removes it."""
        try:
            linux.batch("ip", [f"link del {host.port}"])
        except HostsError:
            if host.port in (name for _, name in socket.if_nameindex()):
                raise

    def _dead(self, those: list[Host]) -> None:
        """Waits until no process of these hosts runs. Processes that entered from outside are reaped by their parents."""
        until = time.monotonic() + DEAD_S
        for host in those:
            while running := linux.alive_in(host.pid_namespace):
                if time.monotonic() > until:
                    raise HostsError(f"processes {running} still run {DEAD_S} s after SIGKILL: see /proc/{running[0]}/stack")
                time.sleep(0.001)
            self.ending.append(host.pid)
            host.pid = 0

    def bury(self) -> None:
        """Reaps first processes. If one ended without a kill, its host is lost, and its link is removed."""
        self.ending = [pid for pid in self.ending if os.waitpid(pid, os.WNOHANG)[0] == 0]
        for host in self.hosts:
            if host.pid and os.waitpid(host.pid, os.WNOHANG)[0]:
                host.pid = 0
                self._unlink(host)

    def _up(self, index: int) -> Host:
        if not 0 <= index < len(self.hosts):
            raise HostsError(f"there is no host{index}: this fleet has host0 to host{len(self.hosts) - 1}")
        if not self.hosts[index].pid:
            raise HostsError(f"host{index} is lost; up-again brings a fresh one")
        return self.hosts[index]

    # ---- What lies between hosts ----

    def _filter(self, cut: tuple[int, int], verb: str) -> str:
        """The tc command of a cut. It filters at the receiver's port, so broadcasts are dropped for that host alone. Priority 1 is for kill."""
        sender, receiver = cut
        where = f"filter {verb} dev {self.hosts[receiver].port} egress prio {sender + 2} protocol all bpf"
        return f"{where} da bytecode {linux.drop_from(sender)}" if verb == "add" else where

    def set_cuts(self, wanted: set[tuple[int, int]]) -> None:
        for change, verb in ((self.cuts - wanted, "del"), (wanted - self.cuts, "add")):
            linux.batch("tc", [self._filter(cut, verb) for cut in sorted(change) if self.hosts[cut[1]].pid])
        self.cuts = wanted

    def pairs(self, first: int | None, second: int | None, one_way: bool) -> set[tuple[int, int]]:
        """The pairs (from, to) of two hosts, of one host and all others, or of all."""
        every = range(len(self.hosts))
        for index in (first, second):
            if index is not None and index not in every:
                raise HostsError(f"there is no host{index}: this fleet has host0 to host{len(self.hosts) - 1}")
        if first is not None and first == second:
            raise HostsError(f"host{first} and host{second} are one host: nothing lies between them")
        from_first = {(a, b) for a in every for b in every if a != b and first in (None, a) and second in (None, b)}
        return from_first if one_way else from_first | {(b, a) for a, b in from_first}

    def shape(self, index: int, what: str, value: str) -> None:
        """Delays or limits what goes to a host and, as much again, what comes from it."""
        host = self._up(index)
        wanted = {**host.shape, what: value}
        if not value:
            del wanted[what]
        net = os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for device, space in ((host.port, None), ("eth0", net)):
                if "delay" in wanted:
                    rate = f" rate {wanted['rate']}" if "rate" in wanted else ""
                    lines = [f"qdisc replace dev {device} root handle 1: netem limit 100000 delay {wanted['delay']}{rate}"]
                elif "rate" in wanted:
                    lines = [f"qdisc replace dev {device} root handle 1: tbf rate {wanted['rate']} burst 128kb latency 100ms"]
                else:
                    lines = [f"qdisc del dev {device} root"] if host.shape else []
                linux.batch("tc", lines, space)
        finally:
            os.close(net)
        host.shape = wanted

    # ---- Requests ----

    def answer(self, asked: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Carries out a request; returns the answer, and descriptors to send with it."""
        verb, index = asked["verb"], asked.get("host", -1)
        if verb == "enter":
            host = self._up(index)
            return {"pid": host.pid}, linux.open_namespaces(host.pid)
        if verb == "kill":
            self.kill(index)
        elif verb == "up-again":
            if not 0 <= index < len(self.hosts):
                self._up(index)
            self.bring_up(index)
        elif verb in ("cut", "heal"):
            pairs = self.pairs(asked.get("first"), asked.get("second"), asked.get("one_way", False))
            self.set_cuts(self.cuts | pairs if verb == "cut" else self.cuts - pairs)
        elif verb in ("delay", "rate"):
            self.shape(index, verb, asked["value"])
        elif verb == "down":
            self.end()
        elif verb != "status":
            raise HostsError(f"no verb {verb!r}")
        return {"hosts": [{"name": f"host{i}", "pid": host.pid, "address": hosts.address(i), "address6": hosts.address6(i), **host.shape}
                          for i, host in enumerate(self.hosts)], "cuts": sorted(self.cuts), "keeper": os.getpid()}, []

    def end(self) -> None:
        up = [host for host in self.hosts if host.pid]
        for host in up:
            os.kill(host.pid, signal.SIGKILL)
        self._dead(up)


def serve(keeper: Keeper, listener: socket.socket, owner: int) -> None:
    """Serves requests until "down", SIGTERM, or the owner's end. SIGCHLD wakes it to reap."""
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    while True:
        watched: list[Any] = [wake, listener, *([owner] if owner >= 0 else [])]
        ready = select.select(watched, [], [])[0]
        if owner in ready or (wake in ready and signal.SIGTERM in os.read(wake, 512)):
            return
        keeper.bury()
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(READY_S)
            try:
                asked = json.loads(connection.makefile().readline())
                reply, descriptors = keeper.answer(asked)
            except (HostsError, OSError, ValueError, KeyError) as error:
                asked, reply, descriptors = {}, {"error": str(error)}, []
            try:
                socket.send_fds(connection, [json.dumps(reply).encode() + b"\n"], descriptors)
            except OSError as error:
                print(f"nobody heard the answer to {asked}: {error}", file=sys.stderr)
            for descriptor in descriptors:
                os.close(descriptor)
            if asked.get("verb") == "down":
                return


def main(folder: Path, count: int, shared: list[str], listening: int, owner: int) -> None:
    """Runs a keeper. owner: a pidfd, or -1. `listening` and `owner` are inherited descriptors."""
    listener = socket.socket(fileno=listening)
    keeper = Keeper(folder, shared)
    try:
        try:
            keeper.begin(count)
        except (HostsError, OSError) as error:
            connection, _ = listener.accept()
            connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        serve(keeper, listener, owner)
    finally:
        try:
            keeper.end()
        finally:
            # A host's first process ends only after processes that entered are reaped by their parents, which may be never.
            until = time.monotonic() + 0.5
            while keeper.ending and time.monotonic() < until:
                keeper.bury()
                time.sleep(0.001)
            with locked(folder.parent):
                remove(folder)


def started(words: list[str]) -> None:
    """Entry point: Fleet.up starts this process with these words."""
    folder, count, listening, owner, *shared = words
    main(Path(folder), int(count), shared, int(listening), int(owner))
