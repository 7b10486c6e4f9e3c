"""What a fleet needs of Linux: namespaces, mounts, links and filters. Each refusal is one sentence.

Filters are classic BPF that tc attaches to a port of the bridge. They need iproute2 and CONFIG_NET_CLS_BPF, and not nft,
which Debian does not install, nor tc's `action drop`, for which some kernels lack the module.
"""
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
NEEDED = {21: "CAP_SYS_ADMIN (namespaces, mounts)", 12: "CAP_NET_ADMIN (links, filters)"}
KINDS = ("pid", "mnt", "uts", "ipc", "net")  # The namespaces of a host. setns(pid) is for the caller's children.
COMMAND_S = 20  # Only a hang takes so long.

libc = ctypes.CDLL(None, use_errno=True)


class HostsError(Exception):
    """One sentence: what was refused, and what to do."""


def _checked(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise HostsError(f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _checked("the kernel makes no new namespace (unshare)", libc.unshare(flags))


def setns(descriptor: int, flags: int = 0) -> None:
    _checked("the kernel lets nobody into this namespace (setns)", libc.setns(descriptor, flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(f"cannot mount {kind or source} at {target}", done)


def sethostname(name: str) -> None:
    _checked(f"cannot take the host name {name}", libc.sethostname(name.encode(), len(name)))


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that forked it ends. The caller checks that it has not ended before."""
    _checked("prctl(PR_SET_PDEATHSIG)", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def close_others(kept: set[int]) -> None:
    """Closes every descriptor except `kept` and the first three."""
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # The descriptor of the listing is closed already.
                os.close(descriptor)


def lacking() -> str:
    """Why this process can not make a fleet, and what to do; empty if it can."""
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    missing = [name for bit, name in NEEDED.items() if not effective >> bit & 1]
    if missing:
        return (f"this process lacks {' and '.join(missing)}: run it as root; in a container, start that with "
                "--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined")
    tools = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if tools:
        return f"{' and '.join(tools)} not found in PATH: apt-get install iproute2"
    return ""


def batch(tool: str, lines: list[str], net: int | None = None) -> None:
    """Runs lines of commands by ip or tc. `net`: a descriptor of the network namespace to run in."""
    if not lines:
        return
    enter = None if net is None else lambda: setns(net, CLONE_NEWNET)
    done = subprocess.run([tool, "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True, check=False,
                          timeout=COMMAND_S, preexec_fn=enter)
    if done.returncode != 0:
        said = " ".join(line for line in done.stderr.splitlines() if not line.startswith("Command failed"))
        raise HostsError(f"{tool} refused one of: {'; '.join(lines)}: {said}{_advice(said, lines)}")


def _advice(said: str, lines: list[str]) -> str:
    options = {"netem": "NET_SCH_NETEM", "tbf": "NET_SCH_TBF", "bpf": "NET_CLS_BPF", "clsact": "NET_SCH_INGRESS",
               "bridge": "BRIDGE", "veth": "VETH"}
    words = " ".join(lines).split()
    if not re.search("unknown|not found|not supported|No such file", said, re.IGNORECASE):
        return ""
    return "".join(f" (this kernel has no {word}: CONFIG_{option}, or its module is not loaded)" for word, option in options.items()
                   if word in words)


def link_address(index: int) -> str:
    """A host's link address. The last two bytes say which host it is, and filters read only these."""
    return f"02:48:46:00:{index + 1 >> 8:02x}:{index + 1 & 255:02x}"


def drop_from(index: int) -> str:
    """BPF that drops a frame from this host (TC_ACT_SHOT) and passes any other to the next filter."""
    return f"'4,40 0 0 10,21 0 1 {index + 1},6 0 0 2,6 0 0 4294967295'"


DROP_ALL = "'1,6 0 0 2'"


def open_namespaces(pid: int) -> list[int]:
    return [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in KINDS]


def spaces_of(pid: int | str) -> set[int]:
    """The inodes of a process's namespaces of the kinds in KINDS."""
    return {os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in KINDS}


def alive_in(pid_namespace: int) -> list[int]:
    """The processes of a pid namespace, given by its inode, that still run. Zombies do not."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}/ns/pid").st_ino == pid_namespace and runs(int(name)):
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process has ended meanwhile.
        except PermissionError:
            continue  # Not a host's process: some sandboxes hide their own first process from root.
    return found


def runs(pid: int) -> bool:
    """Whether a process still runs, and is not just waiting to be reaped."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
        # A first process that ends waits until all that entered from outside are reaped, but has closed its files before that.
        if state not in (b"Z", b"X") and os.listdir(f"/proc/{pid}/task/{thread}/fd"):
            return True
    return False
