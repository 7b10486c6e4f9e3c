"""A toy trainer in image mode: all its state is private bytes, and a run has one right result.

    trainer_core.py --steps N --out DIR [--pause S] [--size BYTES]

Every rank writes DIR/rank-<r>: its version, then its state. The state of step n is a function of
all ranks' states of step n - 1, so a lost, doubled or mixed up state gives a wrong result.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import time
from array import array
from pathlib import Path

import holdfast


def first_state(rank: int, size: int) -> bytes:
    """Return state 0, which differs between ranks."""
    return hashlib.shake_128(struct.pack("<q", rank)).digest(size)


def next_state(state: bytes, rank: int, step: int, total: int) -> bytes:
    """Return the state after `step`. `total` makes it depend on all ranks' states."""
    seed = hashlib.sha256(state + struct.pack("<qqq", rank, step, total)).digest()
    return hashlib.shake_128(seed).digest(len(state))


def number_of(state: bytes) -> int:
    """Return the number that a rank exchanges in place of its state."""
    return int.from_bytes(state[:5], "little")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=10_000)
    options = parser.parse_args()
    job = holdfast.init()
    with job.open(private_bytes=options.size, own_private=True) as session:
        assert os.environ["RANK"] == str(job.rank)
        evens = [r for r in range(job.world_size) if r % 2 == 0]
        team = session.group(evens, "evens") if job.rank in evens else None
        if "HOLDFAST_REHEARSE" not in os.environ:
            (options.out / f"pid-{job.rank}").write_text(str(os.getpid()))
        if session.fresh:
            session.private(0)[:] = first_state(job.rank, options.size)
        session.join()
        state = bytes(session.private(session.version))
        while session.version < options.steps:
            if session.begin_step():
                state = bytes(session.private(session.version))
            n = session.version + 1
            total = array("q", [number_of(state)])
            share = array("q", [n * number_of(state)])
            try:
                work = session.world.start_all_reduce(total, 1, holdfast.DType.INT64)
                if team:
                    team.all_reduce(share, 1, holdfast.DType.INT64, holdfast.Op.MAX)
                time.sleep(options.pause)
                work.wait()
            except holdfast.MarkedError:
                pass  # end_step() recovers; the step is void.
            session.private(n)[:] = next_state(state, job.rank, n, total[0] + share[0])
            step = holdfast.Step(position=holdfast.Position(index=n), loss=1.0 / n)
            session.end_step(step)
            (options.out / f"step-{job.rank}").write_text(f"{n:09}")
            state = bytes(session.private(session.version))
        result = options.out / f"rank-{job.rank}"
        result.write_bytes(struct.pack("<q", session.version) + state)
        if team:
            team.close()


main()
