"""Have `holdfast verify` judge drawn programs (drawn_programs.py) that break the rule in one place.

    soak_broken.py [--kills N] [--seed S] [--journal FILE]

N: the number of programs. Program T of seed S is number 1000 S + T, broken in the next way of the
list. Verify must end with 1 and name what was broken. If it does not, the program and all that
verify said are left in a folder, which is named.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from drawn_programs import BREAKS, program
from soak_loop import soak

LIMIT_S = 1800


def trial(number: int, seed: int, folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    which, how = 1000 * seed + number, list(BREAKS)[number % len(BREAKS)]
    drawn = program(which, how)
    work = folder / f"broken-{which}"
    work.mkdir()
    (work / "train.py").write_text(drawn.text)
    command = [sys.executable, "-m", "holdfast", "verify", "--quick", "--json", "report.json"]
    command += ["--ranks", str(drawn.ranks), "train.py", json.dumps({"kills": []}), "."]
    done = subprocess.run(
        command,
        cwd=work,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    (work / "said").write_text(said)
    assert done.returncode == 1, f"program {which}, {how}: exit code {done.returncode}\n{said}"
    report = json.loads((work / "report.json").read_text())
    names = {
        culprit["name"]
        for run in report["runs"]
        for difference in run["differences"]
        for culprit in difference["culprits"]
    }
    wanted = re.compile(r"\b(seen|SEEN|total|lost)\b")
    assert any(wanted.search(name) for name in names), f"program {which}, {how}: {names}\n{said}"
    shutil.rmtree(work)
    return {"trial": number, "program": which, "victims": [how], "named": sorted(names)}


if __name__ == "__main__":
    soak("soak_broken", 50, trial, ended="programs, all caught and named")
