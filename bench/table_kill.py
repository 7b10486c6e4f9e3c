"""SIGKILL of a parameter server → the next step, beside a usual step, for a table of a given size.

    holdfast run --nproc-per-node 1 --servers 1 bench/table_kill.py [--rows 4000000] [--dim 64] [--kills 9]

Fills a table (Adagrad), then makes steps of 4,096 keys. Kills the server in some of them, after the lookup. Prints
one line of JSON: the table's bytes, the medians and the largest in milliseconds of a usual step and of one with a
kill (from the signal to the end of the same step, made again).
"""

import argparse
import json
import os
import signal
import statistics
import time
from pathlib import Path

import torch

import holdfast.torch as hf

KEYS = 4096
BETWEEN = 20  # Steps from a kill to the next one.


def server_of(agent: int) -> int:
    """Return the process of the agent's server."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(words[1]) == agent and "holdfast-server" in (entry / "cmdline").read_text():
                return int(entry.name)
        except OSError:  # It has ended meanwhile.
            continue
    raise SystemExit("there is no server beside this process")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, usual in (("rows", 4_000_000), ("dim", 64), ("kills", 9)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hf.init()
    table = hf.Embedding(options.rows, options.dim, optimizer="adagrad", initial=("uniform", -0.1, 0.1))
    state = hf.State(torch.nn.ModuleList([table]))
    for first in range(0, options.rows, 100_000):
        with state.step():
            table(torch.arange(first, min(first + 100_000, options.rows))).sum().backward()
    usual, killed, began_at = [], [], {}
    end = state.n + options.kills * BETWEEN
    while state.n < end:
        n, begun = state.n, time.perf_counter()
        keys = torch.randint(options.rows, (KEYS,), generator=torch.Generator().manual_seed(n))
        with state.step():
            rows = table(keys)
            if n % BETWEEN == BETWEEN - 1 and n not in began_at:
                began_at[n] = time.perf_counter()
                os.kill(server_of(os.getppid()), signal.SIGKILL)
            rows.sum().backward()
        if state.n == n:  # Void: it is made again.
            continue
        if n in began_at:
            killed.append(time.perf_counter() - began_at[n])
        else:
            usual.append(time.perf_counter() - begun)
    size = sum(f.stat().st_blocks * 512 for f in Path("/dev/shm").glob("**/tables-*") if f.is_file())
    both = {"usual": usual, "killed": killed}
    figures = {f"{name}_ms": round(1e3 * statistics.median(times), 1) for name, times in both.items()}
    figures |= {f"{name}_max_ms": round(1e3 * max(times), 1) for name, times in both.items()}
    print(json.dumps({"bytes": size, "kills": len(killed), **figures}), flush=True)


if __name__ == "__main__":
    main()
