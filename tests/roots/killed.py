"""Runs a PyTorch program undisturbed, and with kills of rank 0 and rank 1; the last losses must be equal.

killed.py HOLDFAST PROGRAM: the command, and the program, which prints "loss NUMBER". Python's own library is enough.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

KILLS = ((0, 60), (1, 200))  # A rank, and the version from which on it is killed.
LIMIT_S = 600  # Only a hang reaches it.


def status(holdfast):
    """What `holdfast status` tells of the job; {}: nothing yet."""
    done = subprocess.run([holdfast, "status", "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def kill(holdfast, job, rank, version):
    """Kill a rank once the job is at a version; return that version, and the process."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and job.poll() is None:
        told = status(holdfast)
        if told.get("state") == "running" and told["version"] >= version:
            pid = told["ranks"][rank]["pid"]
            os.kill(pid, signal.SIGKILL)
            return told["version"], pid
    sys.exit(f"killed.py: the job did not come to step {version}:\n{job.communicate()[0]}")


def run(holdfast, program, kills):
    """Return the lines with the loss."""
    command = [holdfast, "run", "--nproc-per-node", "2", "--spares", "1", program]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for rank, version in kills:
        now, pid = kill(holdfast, job, rank, version)
        print(f"killed rank {rank} (process {pid}) after step {now}", flush=True)
    said = job.communicate(timeout=LIMIT_S)[0]
    losses = re.findall(r"^(?:\[\w+\]:)?(loss .*)$", said, re.M)
    recoveries = re.findall(r"(\d+) recover", said)
    if job.returncode != 0 or len(losses) != 1 or recoveries != ([str(len(kills))] if kills else []):
        sys.exit(f"killed.py: the job ended with {job.returncode}:\n{said}")
    return losses[0]


def main():
    """Compare."""
    began = time.monotonic()
    disturbed = run(*sys.argv[1:], KILLS)
    undisturbed = run(*sys.argv[1:], ())
    print(f"with {len(KILLS)} kills: {disturbed}; undisturbed: {undisturbed} ({time.monotonic() - began:.0f} s)")
    if disturbed != undisturbed:
        sys.exit("killed.py: the losses DIFFER: this is an error in Holdfast")


main()
