"""The hosts of a job, by torchrun's options: how many, which one this is, where they meet."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import re
import socket
import sys
from dataclasses import dataclass
from typing import Final, NoReturn

USAGE_EXIT: Final = 2
_RDZV_PORT: Final = 29400  # As in torchrun.
_MASTER_PORT: Final = 29500  # As in torchrun.
_LAST_PORT: Final = 65535
_MOST: Final = 10_000  # Hosts.


@dataclass(frozen=True)
class Nodes:
    """The hosts of a job, seen from one of them."""

    count: int  # Hosts that have ranks.
    rank: int  # This host's number. Host 0 runs the scheduler; from `count` on: a spare host.
    address: str  # The scheduler's: an address of host 0.
    port: int  # The scheduler's; 0: a free one, if the job has only one host.
    master_port: int  # What the program finds in MASTER_PORT; 0: a free one, likewise.
    spares: int = 0  # The number of spare hosts.

    @property
    def several(self) -> bool:
        """Whether the command runs on more hosts than this one."""
        return self.count + self.spares > 1

    @property
    def is_spare(self) -> bool:
        """Whether this host waits for another to be lost."""
        return self.rank >= self.count


def fail(message: str) -> NoReturn:
    """End with a sentence that says what is wrong with the command line."""
    print(f"holdfast: {message}", file=sys.stderr)
    raise SystemExit(USAGE_EXIT)


def nodes_of(options: argparse.Namespace) -> tuple[Nodes, list[str]]:
    """Return what the options say of hosts, with remarks for the user."""
    count, most = _counts(options.nnodes)
    if most == 1:
        if options.node_rank not in (None, "0"):
            fail(f"--node-rank is {options.node_rank}, but --nnodes is 1: say how many hosts")
        return Nodes(1, 0, "127.0.0.1", options.sched_port, options.master_port), []
    if options.standalone:
        fail(
            f"--standalone means one host, and --nnodes is {options.nnodes}: leave one of them out"
        )
    address, port = _endpoint(options)
    if options.sched_port not in (0, port):
        fail(
            f"--sched-port is {options.sched_port}, but over several hosts the scheduler's port is "
            f"the one where they meet, {port}: leave --sched-port out"
        )
    rank, remarks = _rank(options.node_rank, most, address)
    # MASTER_PORT is for the program's own store, so it has to differ from the scheduler's port.
    beside = port + 1 if port < _LAST_PORT else port - 1
    chosen = options.master_port if options.rdzv_endpoint else 0
    if chosen == port:
        fail(f"--master-port and the port of --rdzv-endpoint are both {port}: choose two")
    if rank == 0:
        _check_reachable(address)
    return Nodes(count, rank, address, port, chosen or beside, most - count), remarks


def _counts(text: str) -> tuple[int, int]:
    """Return how many hosts have ranks, and how many there are at most."""
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    least = int(match[1]) if match else 0
    most = int(match[2]) if match and match[2] else least
    if not 1 <= least <= most <= _MOST:
        fail(f"--nnodes is '{text}'; allowed is a whole number of hosts from 1, or MIN:MAX")
    return least, most


def _endpoint(options: argparse.Namespace) -> tuple[str, int]:
    """Return the address and the port where the hosts meet."""
    if options.rdzv_endpoint:
        name, text = "--rdzv-endpoint", options.rdzv_endpoint
        address, port = _split(text)
    elif options.master_addr:
        name, text = "--master-addr", options.master_addr
        address, port = text.strip("[]"), str(options.master_port or _MASTER_PORT)
    else:
        fail(
            f"--nnodes is {options.nnodes}, but nothing says where the hosts meet: give all of "
            "them the same --rdzv-endpoint HOST:PORT, with an address of node 0"
        )
    if not re.fullmatch(r"[\w.:%-]+", address) or address in ("0.0.0.0", "::"):
        fail(f"{name} is '{text}'; it has to be HOST:PORT, or HOST, with an address of node 0")
    if not port.isdecimal() or not 1 <= int(port) <= _LAST_PORT:
        fail(
            f"the port in {name} is '{port}'; over several hosts it has to be the same whole "
            f"number from 1 to {_LAST_PORT} on all of them"
        )
    return address, int(port)


def _split(endpoint: str) -> tuple[str, str]:
    """Cut HOST, HOST:PORT, [IPV6], [IPV6]:PORT or IPV6 apart."""
    if match := re.fullmatch(r"\[(.*)\](?::(.*))?", endpoint):
        return match[1], str(_RDZV_PORT) if match[2] is None else match[2]
    if endpoint.count(":") > 1:
        return endpoint, str(_RDZV_PORT)
    address, colon, port = endpoint.partition(":")
    return address, port if colon else str(_RDZV_PORT)


def _rank(text: str | None, count: int, address: str) -> tuple[int, list[str]]:
    """Return this host's number. With two hosts it can be left out: node 0 has the address."""
    if text is not None:
        if not text.isdecimal() or int(text) >= count:
            fail(f"--node-rank is '{text}'; with --nnodes={count}, allowed is 0 to {count - 1}")
        return int(text), []
    if count > 2 or _is_loopback(address):
        fail(
            "--node-rank is missing: give each host its own, from 0 to "
            f"{count - 1} (0: the host that has the address {address})"
        )
    rank = 0 if any(_is_own(a) for a in _resolved(address)) else 1
    has = "has" if rank == 0 else "does not have"
    return rank, [f"this host is node {rank} of 2: it {has} the address {address}"]


def _is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address without being looked up."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _resolved(address: str) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError as error:
        fail(f"the address {address}, where the hosts meet, can not be looked up: {error.strerror}")
    return [(family, (str(where[0]), 0)) for family, _, _, _, where in found]


def _is_own(resolved: tuple[int, tuple[str, int]]) -> bool:
    family, where = resolved
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(where)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        fail(f"whether {where[0]} is an address of this host can not be found out: {error}")
    return True


def _check_reachable(address: str) -> None:
    """End if host 0's name is a loopback address on host 0, as in many an /etc/hosts."""
    if _is_loopback(address):
        return  # By the user's own words: all "hosts" are this one, for a trial.
    found = [where[0] for _, where in _resolved(address)]
    if found and ipaddress.ip_address(found[0].partition("%")[0]).is_loopback:
        fail(
            f"{address} is {found[0]} on this host (see /etc/hosts), where no other host reaches "
            "its scheduler: write the address that the other hosts reach"
        )
