"""The `holdfast` command: run with torchrun's options; all else is the native programs'."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_PACKAGE = Path(__file__).resolve().parent
_USAGE_EXIT = 2
_HELP = """usage: holdfast COMMAND ...

  run       start a Python program in several processes, with torchrun's options (run --help)
  msrun     start any program, with MindSpore's options (msrun --help)
  status    how a running job is
  clean     remove what dead jobs have left
  settings  all environment variables that Holdfast reads
  env       print the directory of the native programs, for the PATH
"""


def programs() -> Path:
    """Return the directory of the native programs."""
    return _PACKAGE / "bin"


def _fail(message: str) -> NoReturn:
    print(f"holdfast: {message}", file=sys.stderr)
    raise SystemExit(_USAGE_EXIT)


def _become(name: str, arguments: Sequence[str], environment: dict[str, str]) -> NoReturn:
    path = programs() / name
    if not path.exists():
        _fail(f"{path} is missing; install Holdfast anew with `pip install .`")
    sys.stdout.flush()
    os.execve(path, [name, *arguments], environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast run",
        allow_abbrev=False,
        description="Start a Python program in several processes on this host and replace those "
        "that fail. Both - and _ may be written within option names.",
    )

    def option(name: str, **how: object) -> None:
        spelled = name.replace("_", "-")
        names = [f"--{spelled}"] if spelled == name else [f"--{spelled}", f"--{name}"]
        parser.add_argument(*names, dest=name, **how)  # type: ignore[arg-type]

    option("nproc_per_node", default="1", help="processes, or 'cpu' or 'auto': one per core")
    option("nnodes", default="1", help="1: all processes are on this host")
    option("max_restarts", type=int, default=3, help="of one rank without a step in between")
    option("spares", type=int, default=0, help="processes that wait, ready, to replace another")
    option("log_dir", default="holdfast-logs", help="gets worker_<rank>.log and scheduler.log")
    option("master_addr", default="127.0.0.1", help="what the program finds in MASTER_ADDR")
    option("master_port", type=int, default=0, help="what it finds in MASTER_PORT; 0: a free one")
    option("sched_port", type=int, default=0, help="the scheduler's port; 0: a free one")
    option("standalone", action="store_true", help="taken for granted")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a Python module")
    option("no_python", action="store_true", help="PROGRAM is no Python program")
    parser.add_argument("program", help="the program, then its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _count(text: str) -> int:
    if text in ("cpu", "auto"):
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) < 1:
        _fail(f"--nproc-per-node is '{text}'; allowed is a whole number from 1, 'cpu' or 'auto'")
    return int(text)


def _run(argv: Sequence[str]) -> NoReturn:
    options = _parser().parse_args(argv)
    if options.nnodes not in ("1", "1:1"):
        _fail(f"--nnodes is {options.nnodes}; only one host is supported: leave it out, or say 1")
    count = _count(options.nproc_per_node)
    if options.no_python:
        command = [options.program]
    elif options.module:
        command = [sys.executable, "-u", "-m", options.program]
    else:
        if not Path(options.program).is_file():
            _fail(f"there is no program {options.program}")
        command = [sys.executable, "-u", options.program]
    environment = dict(os.environ)
    environment.update(
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        GROUP_RANK="0",
        MASTER_ADDR=options.master_addr,
        MASTER_PORT=str(options.master_port or _free_port()),
        TORCHELASTIC_MAX_RESTARTS=str(options.max_restarts),
    )
    if count > 1:  # As torchrun: the processes share the cores.
        environment.setdefault("OMP_NUM_THREADS", "1")
    print(f"holdfast: {count} processes; their output is in {options.log_dir}/", flush=True)
    arguments = [
        f"--worker_num={count}",
        f"--master_port={options.sched_port or _free_port()}",
        f"--log_dir={options.log_dir}",
        "--join=True",
        f"--max_restarts={options.max_restarts}",
        f"--spares={options.spares}",
        str(_PACKAGE / "_shim.sh"),
        *command,
        *options.arguments,
    ]
    _become("msrun", arguments, environment)


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        raise SystemExit(0 if words else _USAGE_EXIT)
    command, rest = words[0], words[1:]
    if command == "run":
        _run(rest)
    if command == "env":
        print(programs())
        return
    if command == "msrun":
        _become("msrun", rest, dict(os.environ))
    if command in ("status", "clean", "settings", "--version"):
        _become("holdfast", words, dict(os.environ))
    _fail(f"there is no command '{command}'; there are run, msrun, status, clean, settings, env")


if __name__ == "__main__":
    main()
