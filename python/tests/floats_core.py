"""A trainer whose parameters Holdfast updates: floats_core.py FOLDER.

It ends when there are two snapshots in FOLDER/snapshots.
Rank 0 writes them after each step, FOLDER/own-N: parameters, then first and second moments.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

from everything_lost import whole

import holdfast

SIZES = {"fc.weight": 40, "fc.bias": 5}


def main(folder: Path) -> None:
    """Train."""
    job = holdfast.init()
    optimizer = holdfast.Optimizer.ADAM
    with job.open(list(SIZES.items()), optimizer, private_bytes=100) as session:
        if session.fresh:
            for i, size in enumerate(SIZES.values()):
                session.parameter(i)[:] = memoryview(bytes(4 * size)).cast("f")
        session.join()
        enough = array("q", [0])
        while not enough[0]:
            session.begin_step()
            enough[0] = len(whole(folder / "snapshots")) >= 2
            session.world.all_reduce(enough, 1, holdfast.DType.INT64, holdfast.Op.MAX)
            n = session.version + 1
            for i, size in enumerate(SIZES.values()):
                for k in range(size):
                    session.gradient(i)[k] = (k + 1) * 0.01 * (job.rank + 1) / n
            session.reduce(0, len(session.gradients()))
            session.private(n)[:] = bytes([n % 256]) * 100
            session.end_step(holdfast.Step(learning_rate=0.1, update_count=n))
            if job.rank == 0:
                count = range(len(SIZES))
                parts = [session.parameter(i) for i in count]
                parts += [session.moment(k, i) for k in (0, 1) for i in count]
                (folder / f"own-{n}").write_bytes(b"".join(part.tobytes() for part in parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
