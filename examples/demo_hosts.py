#!/usr/bin/env python3
"""The promise with hosts, shown: trains on several hosts, one of them is lost, a spare host takes over, and the result
is compared with an undisturbed run on one host.

demo_hosts.py --bin build/release/bin --data DIR [--hosts N] [--epochs N]. ./run --hosts N calls it. The hosts are
namespaces of this machine (docs/testing-hosts.md): root is needed. All figures come from the traces.
"""
import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from common import fleet_of  # noqa: E402
from fleet import HostsError  # noqa: E402
from job import Trace  # noqa: E402

EACH = 2  # Ranks on each host.
BATCH = 16  # Of each rank.
LIMIT_S = 600  # Only a hang takes so long.
PORT = 8118


class Training:
    """One run of mnist. Each host's part has an msrun of its own. Without a fleet, all run on this machine."""

    def __init__(self, arguments, folder, name, hosts, fleet=None, spare_host=False):
        self.fleet, self.hosts, self.folder = fleet, hosts, folder / name.replace(" ", "-")
        (self.folder / "trace").mkdir(parents=True)
        self.trace = Trace(self.folder / "trace")
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {**os.environ, "HOLDFAST_TOKEN_FILE": str(token), "HOLDFAST_TRACE": str(self.folder / "trace"),
                    "HOLDFAST_JOB": f"demo-{secrets.token_hex(4)}", "OMP_NUM_THREADS": "1"}
        self.program = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", arguments.epochs, "--batch", BATCH,
                        "--seed", 7, "--optimizer", "momentum", "--model", "mlp", "--save", self.folder / "final"]
        self.msrun = arguments.bin / "msrun"
        self.agents = {}
        ranks = hosts * EACH
        print(f"\n{name}: {ranks} workers on {hosts} hosts" if fleet else f"\n{name}: {ranks} workers on one host", flush=True)
        self.start(0)
        if spare_host:  # Before the training begins, so that it does not end before the spare host is ready.
            self.start(hosts, "--spare_host=True")
            self.until(lambda: len(self.events("waiting")) >= EACH)
        for part in range(1, hosts if fleet else 1):
            self.start(part)

    def start(self, part, *more):
        """Starts one host's part of the job."""
        each = EACH if self.fleet else self.hosts * EACH
        command = [self.msrun, "--join=True", f"--worker_num={self.hosts * EACH}", f"--local_worker_num={each}", f"--node_rank={part}",
                   f"--master_port={PORT}", f"--log_dir={self.folder}/log-{part}"]
        command += [f"--master_addr={self.fleet.address(0)}"] if self.fleet else []
        command = [str(word) for word in (*command, *more, *self.program)]
        with open(self.folder / f"said-{part}", "ab") as said:
            how = {"env": self.env, "stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            self.agents[part] = self.fleet.popen(part, command, **how) if self.fleet else subprocess.Popen(command, **how)

    def events(self, kind, since=0):
        self.trace.poll()
        return sorted((e for e in self.trace.events(kind) if e["t_ns"] >= since), key=lambda event: event["t_ns"])

    def newest_step(self):
        self.trace.poll()
        return self.trace.newest_step()

    def until(self, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            ended = [part for part, agent in self.agents.items() if agent.poll() is not None]
            if any(self.agents[part].returncode == 0 for part in ended):
                sys.exit("the training was over before a host could be lost: start with --epochs of more")
            if ended or time.monotonic() > end:
                sys.exit(f"part {ended} of the job ended too early:\n{self.said()}")
            time.sleep(0.05)

    def said(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("said-*")))

    def finish(self):
        """Waits for the end; returns what rank 0 has saved, and a line with a digest of each rank's state."""
        codes = [agent.wait(LIMIT_S) for agent in self.agents.values()]
        if any(codes):
            sys.exit(f"the run ended with exit codes {codes}:\n{self.said()}")
        ends = [line for log in self.folder.glob("log-*/*.log") for line in log.read_text().splitlines() if "; state " in line]
        return (self.folder / "final").read_bytes(), sorted(ends)


def tell(training, killed_ns):
    """A paragraph on what happened, in milliseconds after the loss."""
    ms = lambda event: f"{(event['t_ns'] - killed_ns) / 1e6:.0f} ms" if event else "?"  # noqa: E731
    first = lambda kind: next(iter(training.events(kind, killed_ns)), None)  # noqa: E731
    resume = first("resume")
    steps = [e for e in training.events("step", killed_ns) if resume and e["generation"] == resume["generation"]]
    firsts = {}
    for event in steps:
        firsts.setdefault(event["rank"], event)
    before = max((e["step"] for e in training.events("step") if e["t_ns"] < killed_ns), default=0)
    last = max(firsts.values(), key=lambda event: event["t_ns"], default=None)
    print(f"Host 1 was lost silently after step {before}, with {EACH} ranks. The scheduler knew {ms(first('fault'))} later. Spares on host "
          f"{training.hosts} took their places at {ms(first('promoted'))} and fetched the state from the other hosts, "
          f"and the group was formed again at {ms(resume)}, after step {resume['version'] if resume else '?'}. "
          f"All {training.hosts * EACH} ranks had made a new step at {ms(last)}. Steps lost: {max(0, before - resume['version']) if resume else '?'}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    if not 3 <= arguments.hosts <= 8:
        sys.exit(f"--hosts is {arguments.hosts}; allowed is 3 to 8: the last one waits for another to be lost")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="holdfast-run-", dir="/var/tmp") as name, fleet_of(arguments.hosts, arguments.bin.parent) as fleet:
        folder, training_hosts = Path(name), arguments.hosts - 1
        disturbed = Training(arguments, folder, "run that loses a host", training_hosts, fleet, spare_host=True)
        samples = int.from_bytes((arguments.data / "train-labels-idx1-ubyte").read_bytes()[4:8], "big")
        middle = arguments.epochs * (samples // (BATCH * EACH * training_hosts)) // 2
        disturbed.until(lambda: disturbed.newest_step() >= middle)
        killed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        fleet.kill(1)
        print(f"  lost host 1 at step {disturbed.newest_step()}", flush=True)
        disturbed.agents.pop(1).wait()
        state = disturbed.finish()
        tell(disturbed, killed_ns)
        undisturbed = Training(arguments, folder, "undisturbed run", training_hosts).finish()
    if state != undisturbed:
        sys.exit("parameters and optimizer state of the two runs DIFFER: this is an error in Holdfast")
    print(f"\nParameters and optimizer state of both runs are equal bit for bit ({len(state[0]):,} bytes, and digests of {len(state[1])} ranks compared).")


if __name__ == "__main__":
    try:
        main()
    except HostsError as error:
        sys.exit(f"no hosts can be made here: {error}")
