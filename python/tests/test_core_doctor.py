"""`holdfast doctor`: what it says of this machine, of this Python, and of its small job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast._doctor import _what_is_wrong
from holdfast._trial import result_of


def doctor(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", *words],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_core_doctor_tells_of_host_and_packages_and_tries_a_job() -> None:
    done = doctor("--port", "18118")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "port 18118 of the scheduler" in done.stdout
    assert f"ok    Python {sys.version.split()[0]} ({sys.executable}) has " in done.stdout
    assert done.stdout.splitlines()[-1].endswith("ms with the same bits")


def test_core_doctor_names_a_wrong_setting_and_tries_the_job_without_it() -> None:
    done = doctor(MS_ROLE="MS_WORKER", HOLDFAST_JOB="somebody-elses")
    assert done.returncode == 1
    assert "BAD   " in done.stdout and "MS_WORKER_NUM" in done.stdout
    assert "somebody-elses" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("ms with the same bits")


def test_core_doctor_refuses_a_port_that_is_none_and_tries_nothing() -> None:
    done = doctor("--port", "0")
    assert (done.returncode, done.stdout) == (2, "")


def test_core_doctor_takes_no_result_for_right_that_is_not(tmp_path: Path) -> None:
    assert "code 3" in _what_is_wrong(tmp_path, 3)
    assert "was not" in _what_is_wrong(tmp_path, 0), "nothing was killed"
    (tmp_path / "killed").touch()
    for rank in range(2):
        (tmp_path / f"rank-{rank}").write_bytes(result_of(300))
    assert _what_is_wrong(tmp_path, 0) == ""
    (tmp_path / "rank-1").write_bytes(result_of(299))
    assert _what_is_wrong(tmp_path, 0) == "its result is wrong"
