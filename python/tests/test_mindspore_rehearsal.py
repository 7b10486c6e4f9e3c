"""Rehearsals of MindSpore programs: those that keep the contract are equal, others are named."""
# With --ci: a job for each kind.

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, Job, until

pytestmark = NEEDS_MINDSPORE
HERE = Path(__file__).parent
SAID = re.compile(r"holdfast: the rehearsal of rank \d, step \w+: (.*)")
EXPECTED = {
    "model": "equal",
    "state": "equal",
    "loop": r"differs: what it gives to exchange \d+ of all ranks \(a reduction of .*\)",
    "callback": "differs: `0.weight` as the step begins",
    "dropout": r"skipped: the network has dropout, whose masks begin anew in a replacement .*",
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_mindspore_ranks_are_rehearsed(tmp_path: Path, kind: str) -> None:
    shutil.copy(HERE / "mindspore_rehearsed.py", tmp_path)
    # Other tests keep the processors busy.
    variables = {"HOLDFAST_REHEARSAL_INTERVAL": "1", "HOLDFAST_SPARE_SHARE": "100"}
    variables["HOLDFAST_REHEARSALS"] = "1"
    if kind == "callback":  # The last checkpoint has helpers of its own.
        variables["MS_ENABLE_TFT"] = "{TTP:1}"
    program = ["mindspore_rehearsed.py", kind]
    job = Job(tmp_path, tmp_path, program, spares=1, variables=variables)

    def verdicts() -> list[str]:
        logs = [tmp_path / "logs" / f"rehearsal_{rank}.log" for rank in (0, 1)]
        found = [SAID.findall(log.read_text()) if log.exists() else [] for log in logs]
        said = [[line for line in lines if line != "again"] for lines in found]
        return [*said[0], *said[1]] if all(said) else []

    try:
        found = until(lambda: job.process.poll() is not None or verdicts())
        assert found and job.process.poll() is None, job.logs()
        for line in verdicts():
            assert re.fullmatch(EXPECTED[kind], line), f"{line}\n{job.logs()}"
        if kind == "model":
            assert list(tmp_path.glob("saved/1/*.ckpt"))
    finally:
        job.stop()
