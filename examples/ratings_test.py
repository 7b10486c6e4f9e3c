#!/usr/bin/env python3
"""The example `ratings` ends with the same rows, whoever dies and however many servers there are.

ratings_test.py --bin BUILD/bin
"""
import argparse
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BIN = Path()
LIMIT_S = 100


def ratings(folder):
    """Makes up ratings: what a user likes depends on the two numbers."""
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"{(i * 7919) % 300}\t{(i * 104729) % 500}\t{(i * 7919 + i) % 5 + 1}\t{i}" for i in range(60_000)]
    path = Path(folder) / "made-up.inter"
    path.write_text("\n".join(lines) + "\n")
    return path


class Ratings(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.data = ratings(self.folder)

    def run_job(self, servers, kills=()):
        """Runs a job and kills the processes of these places, one after the other. What each rank prints."""
        name = f"ratings-{secrets.token_hex(4)}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        logs = Path(self.folder) / name
        command = [BIN / "msrun", "--worker_num=2", "--local_worker_num=2", f"--server_num={servers}", f"--master_port={port}",
                   f"--log_dir={logs}", "--join=True", BIN / "ratings", "--data", self.data, "3"]
        job = subprocess.Popen(command, env={**os.environ, "HOLDFAST_JOB": name}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for place in kills:
            recoveries = self.recoveries(logs)
            os.kill(self.process(name, place), signal.SIGKILL)
            self.until(lambda before=recoveries: self.recoveries(logs) > before)
        self.assertEqual(job.wait(LIMIT_S), 0, job.stderr.read())
        job.stderr.close()
        self.assertGreaterEqual(self.recoveries(logs), len(kills))
        text = "".join(log.read_text() for log in sorted(logs.glob("*.log")))
        return sorted(set(re.findall(r"rank \d: after .*", text)))

    def until(self, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    @staticmethod
    def recoveries(logs):
        log = logs / "scheduler.log"
        return log.read_text().count(" scheduler: recovery ") if log.exists() else 0

    def process(self, job, place):
        """The process of a place, once the job has made steps."""
        ask = [BIN / "holdfast", "status", "--json", "--job", job]
        self.until(lambda: b'"state":"running"' in (said := subprocess.run(ask, capture_output=True).stdout) and b'"version":0,' not in said)
        wanted = {f"HOLDFAST_JOB={job}".encode(), f"MS_NODE_ID={place}".encode()}
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdecimal() and wanted <= set((process / "environ").read_bytes().split(b"\0")):
                    return int(process.name)
            except OSError:
                continue
        raise AssertionError(f"place {place} has no process")

    def test_no_death_and_no_number_of_servers_changes_a_bit(self):
        expected = self.run_job(1)
        self.assertEqual(len(expected), 2, expected)
        self.assertEqual(self.run_job(2), expected)
        self.assertEqual(self.run_job(2, kills=[2, 0, 3]), expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    BIN = arguments.bin.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
