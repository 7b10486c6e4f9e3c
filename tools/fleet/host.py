"""The first process of a host: makes the host's mounts, name and address, then reaps its orphans.

Forked by the keeper into a pid namespace of its own: when this process ends, the kernel ends all others of the host.
"""
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from . import linux
from .linux import HostsError

V4, V6 = "10.77.0.{}", "fd77:7777:7777::{}"


def address(index: int) -> str:
    return V4.format(index + 1)


def address6(index: int) -> str:
    return V6.format(f"{index + 1:x}")


def live(index: int, to_keeper: int, from_keeper: int, names: str, shared: Sequence[str], outside: set[int]) -> None:
    """Runs the host; does not return. Writes "1" once it has its namespaces, "2" once its network is up, or an error.

    outside: the keeper's namespaces, which must never be changed here.
    """
    signal.set_wakeup_fd(-1)
    try:
        linux.die_with_parent()  # If the keeper has ended already, the first read below notices.
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET)
        if common := linux.spaces_of("self") & outside:
            raise HostsError(f"some namespaces are still the machine's ({common}), so nothing is changed in them")
        linux.sethostname(f"host{index}")
        _mounts(names, shared)
        os.write(to_keeper, b"1")
        if not os.read(from_keeper, 1):
            os._exit(1)
        _network(index)
        os.write(to_keeper, b"2")
        os.close(to_keeper)
        os.close(from_keeper)
    except BaseException as error:
        os.write(to_keeper, f"host{index}: {error}".encode())
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _mounts(names: str, shared: Sequence[str]) -> None:
    """Mounts the host's own /proc, /sys, /dev/shm and /tmp, and the names of all hosts, unseen from outside."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    kept = {path: os.open(path, os.O_PATH) for path in ("/sys/fs/cgroup", names, *shared) if os.path.exists(path)}
    safe = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)
    linux.mount("sysfs", "/sys", "sysfs", safe | linux.MS_NOEXEC)  # /sys/class/net is that of the host.
    linux.mount("shm", "/dev/shm", "tmpfs", safe, "mode=1777")
    linux.mount("tmp", "/tmp", "tmpfs", safe, "mode=1777")
    for path in shared:
        Path(path).mkdir(parents=True, exist_ok=True)
    for path, descriptor in kept.items():
        target = "/etc/hosts" if path == names else path
        linux.mount(f"/proc/self/fd/{descriptor}", target, flags=linux.MS_BIND | linux.MS_REC)
        os.close(descriptor)


def _network(index: int) -> None:
    lines = ["link set lo up", f"link set eth0 address {linux.link_address(index)}", f"addr add {address(index)}/24 dev eth0"]
    v6 = Path("/proc/sys/net/ipv6/conf")
    if v6.exists():
        for name in ("lo", "eth0"):  # Docker switches IPv6 off by default.
            (v6 / name / "disable_ipv6").write_text("0")
        lines.append(f"addr add {address6(index)}/64 dev eth0 nodad")
    linux.batch("ip", [*lines, "link set eth0 up"])
