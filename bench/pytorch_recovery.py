"""Measure kill -> all ranks stepping for a PyTorch program, with and without a spare.

    python bench/pytorch_recovery.py [--kills 3] [--ranks 2]

Uses the tests' program and the scheduler's reports of recoveries. Prints one line of JSON per case:
milliseconds from the moment the death was known to the first new step of all ranks.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))
from torch_job import Job


def measure(ranks: int, spares: int, kills: int) -> dict[str, object]:
    """Kill one process after the other."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"samples": 40000, "epochs": 1, "wait": 0.01}
        job = Job(Path(folder) / "job", config, ranks=ranks, spares=spares)
        log = Path(folder) / "job" / "log"
        try:
            for k in range(kills):
                job.kill_at(k % ranks, 1, delay=10.0 if k == 0 else 0.0)
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    if (log / "scheduler.log").read_text().count(": recovery ") > k:
                        break
                    time.sleep(0.05)
                time.sleep(8)  # The next spare gets ready.
        finally:
            job.stop()
        reports = (log / "recoveries.jsonl").read_text().splitlines()  # Written at the end.
        found = [json.loads(line)["first_step_ms"] for line in reports]
        times = [t for t in found if t is not None]
        return {
            "ranks": ranks,
            "spares": spares,
            "kills": kills,
            "first_step_ms": [round(t, 1) for t in times],
            "median_ms": round(statistics.median(times), 1) if times else None,
        }


def main() -> None:
    """Measure both cases and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    for spares in (1, 0):
        print(json.dumps(measure(options.ranks, spares, options.kills)), flush=True)


if __name__ == "__main__":
    main()
