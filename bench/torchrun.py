"""Runs bench/ddp_loop.py under torchrun, and leaves no process of it, whatever happens."""
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Trace, die_with_parent, kill, processes_of  # noqa: E402


class Torchrun:
    """Use as a context manager. Its processes are known by a variable in their environment."""

    def __init__(self, python, folder, processes, *options):
        self.trace = Trace(folder)
        self.name = f"torchrun-{os.getpid()}-{folder.name}"
        command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "--max-restarts=5",
                   "--monitor-interval=0.02", "--shutdown-timeout=1", Path(__file__).parent / "ddp_loop.py", folder, *options]
        # In torch 2.13 restarted workers find the addresses of the dead ones in the store that they share with
        # torchrun, and no restart ever succeeds; this variable gives every restart a store of its own.
        repaired = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.output = open(folder / "output.txt", "w+", encoding="utf8")
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.output, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
                                        env={**os.environ, **repaired, "HOLDFAST_JOB": self.name})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end = time.monotonic() + 10
        while (left := processes_of(self.name)) and time.monotonic() < end:
            for pid in left:
                kill(pid)
            time.sleep(0.05)
        self.process.wait()
        self.output.close()

    def until(self, found, limit):
        """Waits until found(trace) is not None, and returns it. Ends the program after `limit` seconds."""
        end = time.monotonic() + limit
        while True:
            self.trace.poll()
            if (value := found(self.trace)) is not None:
                return value
            if self.process.poll() is not None or time.monotonic() > end:
                self.output.seek(0)
                sys.exit(f"torchrun did not come so far within {limit} s:\n{self.output.read()[-3000:]}")
            time.sleep(0.005)
