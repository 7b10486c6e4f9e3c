"""Start MindSpore programs with Holdfast's hook: by msrun's options, or by any command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from holdfast._stacks import name_py_spy
from mindio_ttp import _switches

_PACKAGE: Final = Path(__file__).resolve().parent
_HELP: Final = """usage: python -m holdfast.mindspore PROGRAM.py [ARGUMENTS]    run a program
       python -m holdfast.mindspore COMMAND [ARGUMENTS]       run a command, e.g. bash run.sh,
                                                              in which python and msrun are ours
       python -m holdfast.mindspore env                       print the lines that do so
"""
# Options of the native msrun that have no value.
_FLAGS: Final = ("-h", "--help", "--version")
_GASP_HELPERS: Final = 2


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return `base` with Holdfast's hook, packages and msrun first in the paths."""
    result = dict(base)
    own = [str(_PACKAGE / "_site"), str(_PACKAGE.parent.parent)]
    paths = {"PYTHONPATH": own, "PATH": [str(_PACKAGE / "bin"), str(Path(sys.executable).parent)]}
    for name, first in paths.items():
        rest = [p for p in result.get(name, "").split(os.pathsep) if p and p not in first]
        result[name] = os.pathsep.join([*first, *rest])
    return result


def _arguments(words: Sequence[str], variables: dict[str, str]) -> list[str]:
    """Return the native msrun's arguments. Adds Python before a script, and spares if needed."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, mark, value = rest.pop(0).partition("=")
        if name in _FLAGS:
            options.append(name)
            if name != "--version":
                print("--rehearse  spares run the script beside the job: docs/mindspore.md")
            continue
        if name in ("--continue", "--strict_rehearsals", "--allow_inject"):
            options.append(name)
            continue
        if name == "--rehearse":  # Not an option of the native msrun.
            variables["HOLDFAST_REHEARSING_SPARES"] = "1"
            continue
        if not mark and not rest:
            options.append(name)  # The native msrun will say that its value is missing.
        else:
            options.append(f"{name}={value if mark else rest.pop(0)}")
    if rest and rest[0] == "--":
        rest.pop(0)
    if rest and (rest[0].endswith(".py") or rest[0] in ("python", "python3")):
        if not rest[0].endswith(".py"):
            rest.pop(0)
        rest = [sys.executable, "-u", *rest]
    elif rest and rest[0] == "pytest":
        rest = [sys.executable, "-u", "-m", "holdfast._collects", *rest[1:]]
    spares = [option for option in options if option.startswith("--spares")]
    if variables.get("HOLDFAST_REHEARSING_SPARES") == "1":
        if any(option != "--spares=all" for option in spares):
            raise ValueError(
                "--rehearse needs a spare for each rank, which knows it from its start: "
                "--spares=all, or no --spares"
            )
        options.append("--spares=all")
    elif _switches.gasp(variables) and not spares:
        options.append(f"--spares={_GASP_HELPERS}")
    return [*options, *(["--", *rest] if rest else [])]


def msrun(words: Sequence[str]) -> NoReturn:
    """Become the native msrun."""
    variables = environment(dict(os.environ))
    name_py_spy(variables)
    try:
        remarks = _switches.settle(variables)
        arguments = _arguments(words, variables)
    except ValueError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    for remark in remarks:
        print(f"holdfast: {remark}", file=sys.stderr)
    native = _PACKAGE.parent / "bin" / "msrun"
    if not native.exists():
        print(f"holdfast: {native} is missing; install Holdfast anew", file=sys.stderr)
        raise SystemExit(2)
    at = arguments.index("--") + 1 if "--" in arguments else len(arguments)
    script = _script(arguments[at:])
    # Otherwise each worker would fail at each of its starts.
    if script and script.endswith(".py") and not Path(script).is_file():
        print(f"holdfast: there is no script '{script}' in {os.getcwd()}", file=sys.stderr)
        raise SystemExit(2)
    if variables.get("HOLDFAST_NURSERY") != "0":
        arguments[:0] = _forked(script, variables)
    sys.stdout.flush()
    os.execve(native, ["msrun", *arguments], variables)


def _script(command: list[str]) -> str | None:
    """Return the script if a command runs one with this Python."""
    return command[2] if command[:2] == [sys.executable, "-u"] and len(command) > 2 else None


# ---- The nursery ---------------------------------------------------------------------------------


def _forked(script: str | None, variables: dict[str, str]) -> list[str]:
    """Return the option by which msrun uses a nursery, if one can run this script."""
    nursling = _PACKAGE.parent / "bin" / "nursling"
    if not (script and nursling.exists() and fits_nursery(Path(script))):
        return []
    # With a gasp, only first processes import MindSpore: their successors are helpers.
    return ["--forked=first" if _switches.gasp(variables) else "--forked=all"]


def fits_nursery(script: Path) -> bool:
    """Return whether a script imports MindSpore."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*(import|from)\s+mindspore\b", text, re.MULTILINE) is not None


def main(words: Sequence[str]) -> NoReturn:
    """Do what the command line says."""
    if not words or words[0] in ("-h", "--help"):
        print(_HELP, end="")
        raise SystemExit(0 if words else 2)
    if words[0] == "msrun":
        msrun(words[1:])
    variables = environment(dict(os.environ))
    if words == ["env"]:
        for name in ("PATH", "PYTHONPATH"):
            print(f"export {name}='{variables[name]}'")
        raise SystemExit(0)
    command = [sys.executable, *words] if words[0].endswith(".py") else list(words)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, variables)
    except FileNotFoundError:
        print(f"holdfast: there is no command '{command[0]}'", file=sys.stderr)
        raise SystemExit(127) from None
