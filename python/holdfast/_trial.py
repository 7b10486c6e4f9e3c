"""The program of `holdfast doctor`'s small job: a sum of all ranks in each step, and a death.

_trial.py FOLDER STEPS: rank 1 kills itself in the middle, the first time. Each rank writes what it
holds at the end to FOLDER/rank-R.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from array import array
from pathlib import Path

import holdfast

_RANKS = 2
_BYTES = 4096


def next_state(state: bytes, total: int) -> bytes:
    """Return the state after a step in which all ranks' numbers were `total` together."""
    return hashlib.shake_128(state + total.to_bytes(8, "little")).digest(_BYTES)


def number_of(state: bytes, rank: int) -> int:
    """Return what a rank adds to the sum."""
    return int.from_bytes(state[rank : rank + 5], "little")


def result_of(steps: int) -> bytes:
    """Return what each rank holds at the end, computed alone."""
    state = bytes(_BYTES)
    for _ in range(steps):
        state = next_state(state, sum(number_of(state, rank) for rank in range(_RANKS)))
    return state


def main() -> None:
    """Train."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    job = holdfast.init()
    with job.open(private_bytes=_BYTES) as session:
        while session.meet():
            session.private(0)[:] = bytes(_BYTES)
        state = bytes(session.private(session.version))
        while session.version < steps:
            if session.begin_step():
                state = bytes(session.private(session.version))
            total = array("q", [number_of(state, job.rank)])
            if job.rank == 1 and session.version == steps // 2 and _is_first(folder / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            with contextlib.suppress(holdfast.MarkedError):  # end_step() recovers.
                session.world.all_reduce(total, 1, holdfast.DType.INT64)
            session.private(session.version + 1)[:] = next_state(state, total[0])
            session.end_step(holdfast.Step())
            state = bytes(session.private(session.version))
    (folder / f"rank-{job.rank}").write_bytes(state)


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main()
