"""The command `holdfast`: what it starts, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast._stacks import name_py_spy


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_core_env_prints_where_msrun_lies() -> None:
    folder = Path(holdfast("env").stdout.strip())
    assert (folder / "msrun").exists() and (folder / "holdfast").exists()


def test_core_msrun_is_the_native_one() -> None:
    assert "--worker_num" in holdfast("msrun", "--help").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "--nnodes", "2", "x.py"), "nothing says where the hosts meet"),
        (("run", "--nproc-per-node", "0", "x.py"), "--nproc-per-node is '0'"),
        (("run", "--nproc-per-node", "gpus", "x.py"), "--nproc-per-node is 'gpus'"),
        (("run", "--node-rank", "1", "x.py"), "but --nnodes is 1: say how many hosts"),
        (("run", "--tee", "4", "x.py"), "--tee is '4'; allowed is 0 (nothing)"),
        (("run", "--virtual-local-rank", "x.py"), "--virtual-local-rank is not offered"),
        (("run", "--local-ranks-filter", "a", "x.py"), "allowed are ranks of this host: 0,2"),
        (("run", "--max-restarts", "-1", __file__), "allowed is a whole number from 0"),
        (("run", "--spares", "each", __file__), "a whole number from 0, or 'all'"),
        (("run", "--hang-timeout", "-1", __file__), "--hang-timeout is '-1'"),
        (("run", "--hang-timeout=soon", __file__), "--hang-timeout is 'soon'"),
        (("run", "--hang_timeout=nan", __file__), "--hang-timeout is 'nan'"),
        (("msrun", "--worker_num=1", "--hang_timeout=-1", "true"), "--hang_timeout"),
        (("run", "--bogus", "x.py"), "--bogus"),
        (("run",), "required: program"),
        (("run", "/nowhere/x.py"), "there is no program /nowhere/x.py"),
        (("fly",), "there is no command 'fly'"),
    ],
)
def test_core_a_wrong_command_line_is_told_in_one_sentence(
    words: tuple[str, ...], sentence: str
) -> None:
    done = holdfast(*words)
    assert done.returncode == 2
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("spelled", ["--nproc-per-node=2", "--nproc_per_node=2"])
def test_core_a_plain_program_finds_torchruns_variables(tmp_path: Path, spelled: str) -> None:
    program = tmp_path / "plain.py"
    program.write_text(
        "import os, sys, holdfast\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR'.split()\n"
        "before = [os.environ[n] for n in names] + sys.argv[1:]\n"
        "with holdfast.init().open() as session:\n"
        "    session.join()\n"
        "assert int(os.environ['MASTER_PORT']) > 0\n"
        "print(*before)\n"
    )
    done = holdfast("run", spelled, "--log-dir", str(tmp_path), str(program), "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        text = (tmp_path / f"worker_{rank}.log").read_text()
        assert f"{rank} {rank} 2 2 127.0.0.1 --lr 0.1\n" in text


def test_core_the_py_spy_beside_this_python_is_used_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found: dict[str, str] = {}
    name_py_spy(found)
    assert not found
    (tmp_path / "py-spy").touch(0o755)
    name_py_spy(found)
    assert found == {"HOLDFAST_PY_SPY": str(tmp_path / "py-spy")}
    named = {"HOLDFAST_PY_SPY": "/other"}
    name_py_spy(named)
    assert named == {"HOLDFAST_PY_SPY": "/other"}
