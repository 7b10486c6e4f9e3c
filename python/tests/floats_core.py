"""A trainer whose parameters Holdfast updates: floats_core.py FOLDER STEPS.

Rank 0 writes them after each step, FOLDER/own-N: parameters, then first and second moments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast

SIZES = {"fc.weight": 40, "fc.bias": 5}


def main(folder: Path, steps: int) -> None:
    """Train."""
    job = holdfast.init()
    optimizer = holdfast.Optimizer.ADAM
    with job.open(list(SIZES.items()), optimizer, private_bytes=100) as session:
        if session.fresh:
            for i, size in enumerate(SIZES.values()):
                session.parameter(i)[:] = memoryview(bytes(4 * size)).cast("f")
        session.join()
        while session.version < steps:
            session.begin_step()
            n = session.version + 1
            for i, size in enumerate(SIZES.values()):
                for k in range(size):
                    session.gradient(i)[k] = (k + 1) * 0.01 * (job.rank + 1) / n
            session.reduce(0, len(session.gradients()))
            session.private(n)[:] = bytes([n]) * 100
            session.end_step(holdfast.Step(learning_rate=0.1, update_count=n))
            if job.rank == 0:
                count = range(len(SIZES))
                parts = [session.parameter(i) for i in count]
                parts += [session.moment(k, i) for k in (0, 1) for i in count]
                (folder / f"own-{n}").write_bytes(b"".join(part.tobytes() for part in parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
