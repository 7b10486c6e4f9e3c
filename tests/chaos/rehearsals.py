#!/usr/bin/env python3
"""Kill the ranks of a job that is rehearsed all the time, half of them during a rehearsal; its bits are those of an undisturbed one.

rehearsals.py --bin build/release/bin [--kills 200] [--seed 1]
"""
import argparse
import collections
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import free_port

RANKS = 2
STEPS_A_KILL = 700  # Of about 1 ms, so that the job outlasts its kills.


class Toy:
    """A job of the toy under msrun, with a spare."""

    def __init__(self, binaries, folder, steps, variables):
        folder.mkdir()
        self.folder, self.name = folder, f"rehearsals-{os.getpid()}-{folder.name}"
        options = ["--worker_num", RANKS, "--local_worker_num", RANKS, "--spares", 1, "--join", True, "--max_restarts", 1000]
        toy = ["--steps", steps, "--out", folder, "--elements", 20_000, "--pause", 1000]
        places = ["--master_port", free_port(), "--log_dir", folder / "logs"]
        command = [binaries / "msrun", *options, *places, binaries / "toy", *toy]
        environment = {**os.environ, "HOLDFAST_JOB": self.name, **variables}
        with open(folder / "output", "w") as output:
            self.running = subprocess.Popen([str(word) for word in command], env=environment, stdout=output, stderr=output)

    def processes(self):
        """The processes of the toy: those that have or await a rank, and those that rehearse."""
        ranks, rehearsals = [], []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                names = dict(pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if b"=" in pair)
                is_toy = (entry / "cmdline").read_bytes().split(b"\0")[0].endswith(b"/toy")
            except OSError:
                continue
            if not is_toy or names.get(b"HOLDFAST_JOB") != self.name.encode() or names.get(b"MS_ROLE") == b"MS_SCHED":
                continue
            (rehearsals if b"HOLDFAST_REHEARSE" in names else ranks).append(int(entry.name))
        return ranks, rehearsals

    def state(self):
        return [(self.folder / f"rank-{rank}").read_bytes() for rank in range(RANKS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        steps = asked.kills * STEPS_A_KILL
        job = Toy(asked.bin, Path(folder) / "killed", steps, {"HOLDFAST_REHEARSAL_INTERVAL": "0"})
        done = during = 0
        while done < asked.kills and job.running.poll() is None:
            time.sleep(draw.uniform(0.2, 0.45))  # Recoveries and rehearsals come and go meanwhile.
            ranks, rehearsals = job.processes()
            while done % 2 == 0 and not rehearsals and job.running.poll() is None:
                ranks, rehearsals = job.processes()  # One takes a moment only.
            if not ranks:
                continue
            os.kill(draw.choice(ranks), signal.SIGKILL)
            done, during = done + 1, during + bool(rehearsals)
        codes = [job.running.wait()]
        calm = Toy(asked.bin, Path(folder) / "calm", steps, {"HOLDFAST_REHEARSALS": "0"})
        codes.append(calm.running.wait())
        logs = "".join(path.read_text() for path in job.folder.glob("logs/rehearsal_*.log"))
        verdicts = collections.Counter(re.findall(r"the rehearsal of rank \d, step \w+: (\w+)", logs))
        equal = codes == [0, 0] and job.state() == calm.state()
        print(f"{done} kills, {during} of them during a rehearsal; {dict(verdicts)}; the bits {'are equal' if equal else 'DIFFER'}")
        if not equal or done < asked.kills or set(verdicts) != {"equal"}:
            sys.exit(f"exit codes {codes}\n{(job.folder / 'output').read_text()[-2000:]}")


if __name__ == "__main__":
    main()
