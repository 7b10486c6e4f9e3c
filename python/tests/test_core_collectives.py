"""Every collective, for every type, operation and world size, against results computed apart."""
# With --ci: every collective, type and world size.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("collectives_core.py")


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_core_collectives_give_the_rank_order_result(tmp_path: Path, workers: int) -> None:
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", str(workers)]
    command += ["--log-dir", str(tmp_path), "--max-restarts", "0", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    logs = {f.name: f.read_text() for f in tmp_path.glob("worker_*.log")}
    assert done.returncode == 0, (done.stdout, logs)
    assert len(logs) == workers
    assert all("compared" in text for text in logs.values())
