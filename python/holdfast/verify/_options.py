"""The command line of `holdfast verify`; its --help is the manual."""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from holdfast._options import MOST_SERVERS

USAGE_EXIT: Final = 2
_MANUAL: Final = """\
Runs a program several times, in several processes on this host, and compares the runs:

  undisturbed
  every step void once: each step is made a second time, as after a fault of another rank
  kills: each rank is killed at each kind of place that the program has (forward, backward, sum,
  update, between steps, between epochs, in an evaluation, in a save), without and with a spare;
  with --servers each server too, as rank 0 comes to such places (with --quick: one, once)

All runs must end alike. Compared are: what State holds, on each rank after each step, by name;
what each rank pushes to tables of parameter servers, and all their rows after the last step; the
files that the program makes, or those that --compare names; what rank 0 prints (a step that is made
again may print again; what counts is a line with other words or numbers); the exit code.
Where something differs, the program most likely remembers something that State does not hold. To
name it, its variables, classes, closures and modules are compared too. A variable that the
program changes step by step and that differs counts as well; --ignore NAME leaves it out.

Where anything differs the program is run undisturbed once more. What differs between two
undisturbed runs (a time, a process number) is left out; where State differs between them, the
program is not repeatable, and this is said.

With --faults, `holdfast inject` has other faults happen too, drawn by a seed that is printed. Such
runs must end as the undisturbed one, and the job must name each fault as `holdfast explain` tells
it. Ranks are compared in each step there, and a rank that drifts ends the job.

Each run works in a copy of the current folder: the files that a run makes are not there in the
next one. Large files and folders are not copied: they are links. A file that the program makes
elsewhere is compared too, then removed. Nothing but such files is changed outside the copies.

With MindSpore a rank is killed as a step begins, in its midst and at its end; --steps has no
effect; of tables, what the workers hold and push is compared. A program that is no Python program,
or trains by holdfast.init() alone, is killed from outside, as it comes to a step. Then the loss of
each step, files and printed lines are compared; what its memory and its tables hold is not seen, no
variable is named, and no step is void without a kill.
"""
_CODES: Final = (
    "Exit codes: 0 all runs are equal; 1 something differs, a run did not end, or Holdfast itself "
    "refuses the program; 2 the command line is wrong, or the program fails undisturbed or keeps "
    "no state, so that nothing was verified."
)
_FAULTS: Final = 8  # If --faults has no number.
_MOST_FAULTS: Final = 1000
_WITH_VALUE: Final = (
    *("--ranks", "--nproc-per-node", "--servers", "--steps", "--faults", "--seed", "--spares"),
    *("--compare", "--ignore", "--json", "--keep", "--timeout"),
)
_MINDSPORE: Final = re.compile(r"^\s*(import|from)\s+mindspore\b", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """The program to verify, and how to verify it."""

    command: tuple[str, ...]  # -m if it is a module, the program, its arguments.
    kind: str  # torch or mindspore; only seen from outside: native or python.
    ranks: int
    servers: int
    steps: int
    quick: bool
    faults: int
    seed: int
    spares: tuple[str, ...]
    compare: tuple[str, ...]
    ignore: tuple[str, ...]
    json: Path | None
    keep: Path | None
    patience_s: float

    @property
    def from_outside(self) -> bool:
        """Whether verify only sees the program from outside: its trace, output and files."""
        return self.kind in ("native", "python")


def fail(message: str) -> NoReturn:
    """End with a sentence that says what is wrong with the command line."""
    print(f"holdfast verify: {message}", file=sys.stderr)
    raise SystemExit(USAGE_EXIT)


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (holdfast verify --help lists all options)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast verify",
        allow_abbrev=False,
        description=_MANUAL,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        *("--ranks", "--nproc-per-node"),
        type=int,
        default=2,
        metavar="R",
        help="processes of each run (default: 2)",
    )
    add(
        "--servers",
        type=int,
        default=0,
        metavar="N",
        help="parameter servers of each run, for a program that uses tables (default: none)",
    )
    add(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="end the training after N steps, by state.stop(); a loop of the program's own that "
        "does not ask state.steps goes on to its end (default: as the program has it)",
    )
    add(
        "--quick",
        action="store_true",
        help="a few kills in one run: within a minute for a small program",
    )
    add(
        "--faults",
        type=int,
        default=0,
        metavar="[N]",
        help="then N faults on order as well (8): kill, stop, hang (0.3 s), a lost page of memory, "
        "a flipped bit (with 3 ranks or more); each has to be told of by name",
    )
    add(
        "--seed",
        type=int,
        default=-1,
        metavar="S",
        help="draw the faults as a run did that printed this seed (default: a new one)",
    )
    add(
        "--spares",
        metavar="LIST",
        help="make the runs with kills for each of these numbers of spares (default: 0,1; with "
        "--quick: 0)",
    )
    add(
        "--compare",
        action="append",
        default=[],
        metavar="GLOB",
        help="compare these files, byte for byte (those of torch.save, numpy and pickle by what "
        "they hold), and no others; may be given several times",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable that may differ; * stands for anything; may be given several times",
    )
    add("--json", type=Path, metavar="FILE", help="write a report for programs")
    add("--keep", type=Path, metavar="DIR", help="keep copies, files and logs of all runs there")
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="a run that makes no step for so many seconds has hung (default: 300)",
    )
    add("-m", "--module", action="store_true", help="PROGRAM is a Python module")
    add("program", metavar="PROGRAM", help="the program, then its arguments")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    return parser


def _program(options: argparse.Namespace) -> tuple[tuple[str, ...], str]:
    """Return the command and the kind of program."""
    words = (options.program, *options.arguments)
    if options.module:
        return ("-m", *words), "torch"
    path = Path(options.program)
    if not path.is_file():
        fail(f"there is no program {options.program}")
    if path.suffix != ".py":
        return (str(path.resolve()), *options.arguments), "native"
    kind = "mindspore" if _MINDSPORE.search(path.read_text(errors="replace")) else "torch"
    absolute, here = Path(os.path.abspath(path)), Path.cwd()  # Without `..`, but with links.
    if absolute.is_relative_to(here):  # A relative path leads to the copy.
        return (str(absolute.relative_to(here)), *options.arguments), kind
    return (str(absolute), *options.arguments), kind


def _with_number(argv: Sequence[str]) -> list[str]:
    """Give a bare --faults its number: argparse would take the program for it."""
    words = list(argv)
    for i, word in enumerate(words):
        if word == "--faults" and not (i + 1 < len(words) and words[i + 1].lstrip("-").isdecimal()):
            words[i] = f"--faults={_FAULTS}"
        if not word.startswith("-") and (i == 0 or words[i - 1] not in _WITH_VALUE):
            break  # The program: what follows is its own.
    return words


def parse(argv: Sequence[str]) -> Options:
    """Return the options on the command line, or end with a sentence that says what is wrong."""
    options = _parser().parse_args(_with_number(argv))
    if not 1 <= options.ranks <= 10_000:
        fail(f"--ranks is {options.ranks}; allowed is 1 to 10000")
    if not 0 <= options.servers <= MOST_SERVERS:
        fail(f"--servers is {options.servers}; allowed is a whole number from 0 to {MOST_SERVERS}")
    if options.steps < 0:
        fail(f"--steps is {options.steps}; allowed is a whole number from 1")
    if not 0 <= options.faults <= _MOST_FAULTS:
        fail(f"--faults is {options.faults}; allowed is a whole number up to {_MOST_FAULTS}")
    if options.seed < 0:
        options.seed = random.SystemRandom().randrange(1_000_000)
    spares = tuple((options.spares or ("0" if options.quick else "0,1")).split(","))
    if not all(number.isdecimal() or number == "all" for number in spares):
        fail(
            f"--spares is '{options.spares}'; allowed are numbers, or all, with commas between: 0,1"
        )
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        fail(f"--keep {options.keep}: the folder is not empty; name another one")
    command, kind = _program(options)
    return Options(
        command=command,
        kind=kind,
        ranks=options.ranks,
        servers=options.servers,
        steps=options.steps,
        quick=options.quick,
        faults=options.faults,
        seed=options.seed,
        spares=spares,
        compare=tuple(options.compare),
        ignore=tuple(options.ignore),
        json=options.json,
        keep=options.keep,
        patience_s=options.timeout,
    )
