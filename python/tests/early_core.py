"""Uses a group before there is a session. Rank 1 dies in a collective of it, once."""

from __future__ import annotations

import os
import signal
from array import array

import holdfast

job = holdfast.init()
marked = False
if job.place.attempt == 1:
    group = job.worker.early_group(range(job.world_size), "all")
    ranks = array("q", [0] * job.world_size)
    group.all_gather(array("q", [job.rank]), 8, ranks)
    assert list(ranks) == list(range(job.world_size))
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except holdfast.MarkedError:
        marked = True
assert marked == (job.rank != 1)
with job.open(private_bytes=8, own_private=True) as session:
    session.join()
    while session.version < 3:
        session.begin_step()
        session.world.barrier()
        session.end_step(holdfast.Step())
print("went on")
