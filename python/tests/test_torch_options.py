"""Every option of torchrun, as torch's own parser has it, given to `holdfast run`."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_job import LIMIT_S, needs_torch

from holdfast._options import _parser, parse
from holdfast._torchrun import REFUSED, WITHOUT_EFFECT

pytestmark = needs_torch

# Options whose default is another one here, and why nobody has to write more for it; or, if `said`
# is true, docs/python.md says it.
DEFAULTS = {
    "nnodes": ("1 is 1:1", False),
    "log_dir": ("a folder that is found again, not one in /tmp", True),
    "max_restarts": ("a lost process is replaced without being asked for", True),
    "rdzv_endpoint": ("not given", False),
    "node_rank": ("not given: of two hosts it may be left out", False),
    "master_addr": ("not given: one host needs none", False),
    "master_port": ("0 is a free one, as torchrun takes for one host", False),
    "duplicate_stdout_filters": ("an empty list", False),
    "duplicate_stderr_filters": ("an empty list", False),
}
HERE = {"training_script": "program", "training_script_args": "arguments"}
DOCUMENT = Path(__file__).parents[2] / "docs/python.md"


def theirs() -> dict[str, argparse.Action]:
    from torch.distributed.run import get_args_parser

    return {action.dest: action for action in get_args_parser()._actions if action.dest != "help"}


def ours() -> dict[str, argparse.Action]:
    return {action.dest: action for action in _parser()._actions}


def number_of_values(action: argparse.Action) -> Any:
    return 1 if action.nargs is None else action.nargs


def spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sample(action: argparse.Action) -> list[str]:
    """Return the option with a value, as on a command line."""
    if number_of_values(action) == 0:
        return [spelled(action.dest)]
    values = {"nproc_per_node": "2", "signals_to_handle": "SIGTERM,SIGUSR1", "role": "r"}
    whole = action.type in (int, float)
    value = values.get(action.dest, action.choices[0] if action.choices else "3" if whole else "x")
    return [f"{spelled(action.dest)}={value}"]


def test_torch_each_option_of_torchrun_is_here_with_its_values_and_default() -> None:
    mine, other_defaults = ours(), set()
    for name, action in theirs().items():
        own = mine.get(HERE.get(name, name))
        assert own is not None, f"{name} is missing"
        assert set(action.option_strings) <= set(own.option_strings), name
        assert number_of_values(own) == number_of_values(action), name
        if name in WITHOUT_EFFECT or name in REFUSED:
            assert own.default in (None, False), name  # Given or not given is all that counts.
            continue
        assert own.choices == action.choices, name
        if own.default != action.default:
            other_defaults.add(name)
    assert other_defaults == set(DEFAULTS)
    assert set(WITHOUT_EFFECT) | set(REFUSED) <= set(theirs())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_torch_a_refusal_names_its_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").touch()
    with pytest.raises(SystemExit) as end:
        parse([*sample(theirs()[name]), str(tmp_path / "p.py")])
    assert end.value.code == 2
    expected = f"holdfast: {spelled(name)} is not offered: {REFUSED[name]}\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_torch_an_option_without_effect_says_why(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").touch()
    run = parse([*sample(theirs()[name]), str(tmp_path / "p.py")])
    assert run.remarks == (f"{spelled(name)}: without effect, since {WITHOUT_EFFECT[name]}",)


def test_torch_pet_variables_stand_for_options_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for name, action in theirs().items():
        if type(action).__name__ not in ("env", "check_env"):
            continue
        given = getattr(_parser().parse_args([*sample(action), "p.py"]), name)
        value = sample(action)[0].partition("=")[2] or "1"
        with monkeypatch.context() as patch:
            patch.setenv(f"PET_{name.upper()}", value)
            assert getattr(_parser().parse_args(["p.py"]), name) == given, name
            if value == "1":
                patch.setenv(f"PET_{name.upper()}", "0")
                assert getattr(_parser().parse_args(["p.py"]), name) is False, name
        tried += 1
    assert tried > 25


@pytest.mark.parametrize("words", [["--nnode", "1"], ["--stand"], ["--mod"], ["--no-p"]])
def test_torch_options_may_be_shortened_as_there(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    there = vars(get_args_parser().parse_args([*words, "p"]))
    here = vars(_parser().parse_args([*words, "p"]))
    name = {"--nnode": "nnodes", "--stand": "standalone", "--mod": "module"}.get(
        words[0], "no_python"
    )
    assert there[name] == here[name] in ("1", True)


def test_torch_the_documentation_has_every_option() -> None:
    text = DOCUMENT.read_text()
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    missing = {spelled(n) for n, a in theirs().items() if a.option_strings} - named
    assert not missing
    for name, (_, said) in DEFAULTS.items():
        assert not said or re.search(rf"`{spelled(name)}`[^|]*\| [^|]*by default", text), name


STARTED = """
import os, sys
from pathlib import Path
import holdfast.torch as hf

def main(rank, *_):
    hf.init()

if __name__ == "__main__":
    if "spawn" in sys.argv:
        from torch import multiprocessing
        multiprocessing.spawn(main, args=(2,), nprocs=2)
    main(0)
"""


@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "TORCHELASTIC_RUN_ID": "x"}, [], "accelerate launch"),
        ({"LT_CLI_USED": "1", "TORCHELASTIC_RUN_ID": "x"}, [], "fabric run"),
        ({"CROSS_SIZE": "1"}, [], "deepspeed"),
        ({"TORCHELASTIC_RUN_ID": "x"}, [], "torchrun"),
        ({}, ["spawn"], "torch.multiprocessing (mp.spawn)"),
    ],
)
def test_torch_processes_of_other_launchers_are_refused_by_name(
    variables: dict[str, str], words: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(STARTED)
    size = {} if words else {"WORLD_SIZE": "2", "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "p.py", *words],
        cwd=tmp_path,
        env={**os.environ, **variables, **size},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert said in done.stderr and "`holdfast run --nproc-per-node" in done.stderr, done.stderr


RECORDS = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("of the program")

main()
"""


def test_torch_what_record_writes_is_in_the_log_folder(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(RECORDS)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.run", "--max-restarts=0", "--log-dir=log", "p.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1, done.stderr
    error = json.loads((tmp_path / "log" / "error_0.json").read_text())
    assert error["message"]["message"] == "ValueError: of the program"
