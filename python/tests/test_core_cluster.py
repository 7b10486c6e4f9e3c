"""The cluster's part of the Python interface, in a job of three processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("cluster_core.py")


def test_core_a_program_learns_who_is_there_and_exchanges_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "3"]
    command += ["--log-dir", str(tmp_path), "--max-restarts", "0", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("compared") == 3
