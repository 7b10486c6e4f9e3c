"""The `holdfast` command: `run` has torchrun's options; native programs do the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from holdfast._options import USAGE_EXIT, fail, parse

_PACKAGE = Path(__file__).resolve().parent
_NATIVE = (
    *("status", "serve", "explain", "inject", "stop", "pause", "resume", "drain", "move", "clean"),
    *("settings", "timeline", "tls", "table", "snapshot", "--version"),
)
_HELP = """usage: holdfast COMMAND ...

  run       start a Python program in several processes, with torchrun's options (run --help)
  verify    prove that a program goes on with the same bits after faults (verify --help)
  msrun     start any program, with MindSpore's options (msrun --help)
  status    how a running job is
  serve     a status page, and metrics for Prometheus (serve --help)
  explain   what happened to a job, also to one that has ended (explain --help)
  inject    have a fault happen to a rank, to try a job (inject --help)
  stop      have a job make a last snapshot, if it makes any, and end (stop --help)
  pause     have a job keep its memory and make no further step
  resume    have a paused job go on
  drain     have other hosts take a host's ranks over, for good (drain --help)
  move      have another host take a host's ranks over (move --help)
  clean     remove what dead jobs have left
  doctor    what this machine has, what will not work and what to do; tries a small job
  settings  all environment variables that Holdfast reads
  timeline  draw what happened to a job, out of its traces (timeline --help)
  tls       make or check the certificates of a job (tls --help)
  table     list saved tables, export one to a file, import it (table --help)
  snapshot  list, verify, compare, export snapshots of whole jobs, have one made (snapshot --help)
  env       print the directory of the native programs, for the PATH
"""


def programs() -> Path:
    """Return the directory of the native programs."""
    return _PACKAGE / "bin"


def _require(name: str) -> Path:
    path = programs() / name
    if not path.exists():
        fail(f"{path} is missing; install Holdfast anew with `pip install .`")
    return path


def _become(name: str, arguments: Sequence[str]) -> NoReturn:
    path = _require(name)
    sys.stdout.flush()
    os.execv(path, [name, *arguments])


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        raise SystemExit(0 if words else USAGE_EXIT)
    command, rest = words[0], words[1:]
    if command == "run":
        run = parse(rest)
        _require("msrun")
        from holdfast._launch import Launch

        raise SystemExit(Launch(run).main())
    if command == "verify":
        _require("msrun")
        from holdfast.verify._course import main as verify

        raise SystemExit(verify(rest))
    if command == "env":
        print(programs())
        return
    if command == "msrun":
        from holdfast.mindspore._launch import msrun

        msrun(rest)  # The hook makes MindSpore programs find Holdfast.
    if command == "snapshot" and rest[:1] == ["export"]:
        from holdfast.snapshots._export import main as export

        raise SystemExit(export(rest[1:]))
    if command == "snapshot" and rest[:1] == ["diff"]:
        from holdfast.snapshots._diff import main as diff

        raise SystemExit(diff(rest[1:]))
    if command == "doctor":
        _require("holdfast")
        from holdfast._doctor import main as doctor

        raise SystemExit(doctor(rest))
    if command in _NATIVE:
        _become("holdfast", words)
    fail(
        f"there is no command '{command}'; "
        f"there are run, verify, msrun, doctor, {', '.join(_NATIVE[:-1])}, env"
    )


if __name__ == "__main__":
    main()
