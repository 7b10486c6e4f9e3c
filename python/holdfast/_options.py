"""Read the command line of `holdfast run`: torchrun's options, and their meaning here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from holdfast._nodes import USAGE_EXIT, Nodes, fail, nodes_of
from holdfast._streams import Streams, streams_of
from holdfast._torchrun import REFUSED, WITHOUT_EFFECT, devices, more_that_end, said_of

__all__ = ["MOST_SERVERS", "USAGE_EXIT", "Run", "fail", "parse"]

# As in msrun.
_MOST: Final = 10_000  # Processes of a job.
MOST_SERVERS: Final = 1000
_LONGEST_S: Final = 31_536_000
_SHUTDOWN_S: Final = "30"  # As in torchrun.


@dataclass(frozen=True)
class Run:
    """The program to run, and how to run it."""

    count: int  # Processes on this host.
    sizes: tuple[int, ...]  # Processes on each host that has ranks.
    nodes: Nodes
    command: tuple[str, ...]
    log_dir: Path
    max_restarts: int
    spares: str  # A number, or "all".
    strict_rehearsals: bool
    hang_timeout: float
    allow_inject: bool
    servers: int  # Of the whole job.
    snapshots: tuple[str, ...]  # Options of msrun.
    master_addr: str
    master_port: int
    sched_port: int
    run_id: str
    role: str
    oversubscribe: bool
    continues: bool
    first: int  # The first rank of this host.
    streams: Streams
    ending_signals: tuple[str, ...]  # SIGUSR1, SIGUSR2, or both.
    shutdown_timeout: str | None  # None: what the settings say.
    remarks: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """The number of processes on all hosts."""
        return sum(self.sizes)

    @property
    def said_sizes(self) -> list[str]:
        """The sizes as on a command line: a single number, if all hosts have the same."""
        return [str(size) for size in (self.sizes if len(set(self.sizes)) > 1 else self.sizes[:1])]


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (holdfast run --help lists all options)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast run",
        description="Start a Python program in several processes, on this host or on several, and "
        "replace those that fail. It has torchrun's options, as it spells and shortens them, and "
        "some of its own. Both - and _ may be written within option names; PET_<OPTION> in the "
        "environment stands for an option that is not given (of a flag: 1).",
    )

    def option(name: str, *short: str, **how: object) -> None:
        spelled = name.replace("_", "-")
        names = [f"--{spelled}"] if spelled == name else [f"--{spelled}", f"--{name}"]
        value = os.environ.get(f"PET_{name.upper()}")
        if how.get("action") is None:
            how["default"] = how.get("default") if value is None else value
        elif value not in (None, "0", "1"):
            fail(f"PET_{name.upper()} is '{value}'; allowed is 0 or 1")
        else:
            how["default"] = value == "1"
        parser.add_argument(*short, *names, dest=name, **how)  # type: ignore[arg-type]

    option(
        "nproc_per_node",
        default="1",
        help="processes; 'cpu': one per core; 'gpu', 'xpu': one per device; 'auto': one per "
        "device, or per core where there is none; 4,2: of unequal hosts, each one's",
    )
    option("nnodes", default="1", help="hosts; MIN:MAX: those beyond MIN are spare hosts")
    option(
        "oversubscribe",
        action="store_true",
        help="this host takes the processes of a lost one besides its own, if no spare host does",
    )
    option(
        "continue",
        action="store_true",
        help="go on with a job whose launcher has died on this host, from what its processes have "
        "left there; HOLDFAST_JOB says which one, if there are several",
    )
    option("node_rank", help="of this host; 0 runs the scheduler. Of two hosts it may be left out")
    option("rdzv_endpoint", help="HOST[:PORT] of node 0, where all hosts meet; port 29400 if unset")
    option(
        "max_restarts",
        type=int,
        default=3,
        help="of one rank without a step in between; torchrun's counts all, and is 0 by default",
    )
    option(
        "spares",
        default="0",
        help="processes that wait, ready, to replace another; all: one per rank",
    )
    option(
        "strict_rehearsals",
        action="store_true",
        help="a rehearsal that finds other bits than its rank ends the job",
    )
    option(
        "hang_timeout",
        default="0",
        help="how many seconds the others may wait for a rank that lives before it is replaced; 0: "
        "it is only named",
    )
    option(
        "allow_inject",
        action="store_true",
        help="`holdfast inject` may have faults happen to this job",
    )
    option(
        "servers",
        type=int,
        default=0,
        help="parameter servers of the whole job, shared out among its hosts: they keep the tables "
        "of hf.Embedding",
    )
    option(
        "snapshot",
        help="a folder of this job, the same on all hosts, for snapshots of the whole job",
    )
    option(
        "snapshot_every",
        help="how often: 30s, 5min, 2h; or a number of steps (5min, and the first after 30s)",
    )
    option(
        "grace",
        help="how many seconds the job has from SIGTERM (or SIGUSR1) to its end, with a last "
        "snapshot (25, if not given)",
    )
    option("snapshot_keep", help="how many snapshots are kept (2, if not given)")
    option(
        "resume",
        help="begin with the newest snapshot of this folder; auto: of --snapshot, if it has any",
    )
    option("log_dir", default="holdfast-logs", help="gets worker_<rank>.log and scheduler.log")
    option(
        "redirects",
        "-r",
        default="0",
        help="1, 2, 3: standard output, standard error, both go to --log-dir only; 0:1,1:2: of "
        "each local rank",
    )
    option(
        "tee",
        "-t",
        default="0",
        help="likewise: go to --log-dir and to the terminal, which is the default here",
    )
    option("local_ranks_filter", default="", help="show only the output of these ranks: 0,2")
    for stream in ("stdout", "stderr"):
        option(
            f"duplicate_{stream}_filters",
            default="",
            help=f"of what --tee names, lines with one of these words go to filtered_{stream}.log "
            "too: apple,orange",
        )
    option(
        "signals_to_handle",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="with SIGUSR1 or SIGUSR2 in it, that signal ends the job, and the processes get it; "
        "otherwise they get it, and the job goes on",
    )
    option(
        "shutdown_timeout",
        help=f"how many seconds processes have that were asked to end ({_SHUTDOWN_S}, if not "
        "given; with --snapshot 5, and half of --grace at most)",
    )
    option("role", default="default", help="a name for the processes, shown before their output")
    option("rdzv_id", default="none", help="what the program finds in TORCHELASTIC_RUN_ID")
    option("master_addr", help="what the program finds in MASTER_ADDR; of several hosts, node 0")
    option("master_port", type=int, default=0, help="what it finds in MASTER_PORT; 0: a free one")
    option("sched_port", type=int, default=0, help="the scheduler's, on one host; 0: a free one")
    option("standalone", action="store_true", help="taken for granted on one host")
    option("module", "-m", action="store_true", help="PROGRAM is a Python module")
    option("no_python", action="store_true", help="PROGRAM is no Python program")
    option("run_path", action="store_true", help="PROGRAM is a Python file, whatever else is said")
    for name, why in WITHOUT_EFFECT.items():
        option(name, help=f"without effect: {why}")
    for name, why in REFUSED.items():
        flag = {"action": "store_true"} if name == "virtual_local_rank" else {}
        option(name, help=f"not offered: {why}", **flag)
    parser.add_argument("program", help="the program, then its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _sizes(text: str, hosts: int) -> tuple[int, ...]:
    """Return how many processes each host with ranks has."""
    if text in ("cpu", "auto", "gpu", "xpu"):
        return (devices(text),) * hosts
    numbers = text.split(",")
    if not all(number.isdecimal() and 1 <= int(number) <= _MOST for number in numbers):
        fail(
            f"--nproc-per-node is '{text}'; allowed is a whole number from 1, 'cpu', 'gpu', 'xpu' "
            "or 'auto', or a number for each host: 4,2"
        )
    if len(numbers) not in (1, hosts):
        fail(
            f"--nproc-per-node is '{text}', which are {len(numbers)} hosts, but --nnodes is "
            f"{hosts}: give one number for each host, or one for all"
        )
    sizes = tuple(int(number) for number in numbers)
    return sizes if len(sizes) == hosts else sizes * hosts


def _seconds(name: str, text: str, zero: str = "no limit") -> float:
    """Return the value of an option that is a time, of which 0 stands for something special."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _LONGEST_S:
        fail(
            f"{name} is '{text}'; allowed is a number of seconds from 0, which is {zero}, to "
            f"{_LONGEST_S}"
        )
    return seconds


def _command(options: argparse.Namespace) -> list[str]:
    python = os.environ.get("PYTHON_EXEC", sys.executable)  # As in torchrun.
    if not options.run_path and options.no_python:
        return [options.program]
    if not options.run_path and options.module:
        return [python, "-u", "-m", options.program]
    if not Path(options.program).is_file():
        fail(f"there is no program {options.program}")
    return [python, "-u", options.program]


def _shutdown_timeout(options: argparse.Namespace) -> str | None:
    """Return the seconds for processes that were asked to end; None: what the settings say."""
    text = options.shutdown_timeout
    if text is None and "HOLDFAST_SHUTDOWN_TIMEOUT" not in os.environ:
        text = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        if text is None and options.snapshot is None and "HOLDFAST_SNAPSHOT" not in os.environ:
            text = _SHUTDOWN_S
    return None if text is None else str(_seconds("--shutdown-timeout", text, "to end at once"))


def parse(argv: Sequence[str]) -> Run:
    """Return the options on the command line, or end with a sentence that says what is wrong."""
    options = _parser().parse_args(argv)
    remarks = said_of(options)
    if options.module and options.no_python and not options.run_path:
        fail("-m and --no-python exclude each other")
    if options.max_restarts < 0:
        fail(f"--max-restarts is {options.max_restarts}; allowed is a whole number from 0")
    if not 0 <= options.servers <= MOST_SERVERS:
        fail(f"--servers is {options.servers}; allowed is a whole number from 0 to {MOST_SERVERS}")
    if options.spares != "all" and not options.spares.isdecimal():
        fail(
            f"--spares is '{options.spares}'; allowed is a whole number from 0, or 'all': one for "
            "each rank"
        )
    nodes, of_nodes = nodes_of(options)
    sizes = _sizes(str(options.nproc_per_node), nodes.count)
    total = sum(sizes)
    if total > _MOST:
        fail(
            f"--nnodes={nodes.count} with --nproc-per-node={options.nproc_per_node} are "
            f"{total} processes; {_MOST} is the most"
        )
    # A spare host may get the ranks of any other.
    count = max(sizes) if nodes.is_spare else sizes[nodes.rank]
    here = (total, 0) if nodes.is_spare else (count, sum(sizes[: nodes.rank]))
    streams = streams_of(options, *here)
    if not nodes.several and options.rdzv_endpoint is not None:
        remarks.append("--rdzv-endpoint: without effect on one host")
    return Run(
        count=count,
        sizes=sizes,
        nodes=nodes,
        command=(*_command(options), *options.arguments),
        log_dir=Path(options.log_dir),
        max_restarts=options.max_restarts,
        spares=options.spares,
        strict_rehearsals=options.strict_rehearsals,
        hang_timeout=_seconds("--hang-timeout", options.hang_timeout),
        allow_inject=options.allow_inject,
        servers=options.servers,
        snapshots=tuple(
            f"--{name}={getattr(options, name)}"
            for name in ("snapshot", "snapshot_every", "snapshot_keep", "grace", "resume")
            if getattr(options, name) is not None
        ),
        master_addr=options.master_addr or nodes.address,
        master_port=nodes.master_port,
        sched_port=nodes.port,
        run_id=options.rdzv_id,
        role=options.role,
        oversubscribe=options.oversubscribe,
        continues=getattr(options, "continue"),
        first=here[1],
        streams=streams,
        ending_signals=more_that_end(options.signals_to_handle),
        shutdown_timeout=_shutdown_timeout(options),
        remarks=(*of_nodes, *remarks),
    )
