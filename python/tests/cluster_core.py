"""A program that does not train, but uses its job: hosts, key-values, gathered bytes."""

from __future__ import annotations

import os

import holdfast

job = holdfast.init()
assert job.local_rank == job.rank
job.put(f"of {job.rank}", b"first")
job.put(f"of {job.rank}", b"second")
neighbour = (job.rank + 1) % job.world_size
assert job.get(f"of {neighbour}", wait_s=60) == b"first"
assert job.get("of nobody") is None
assert job.set(f"count {job.rank}", b"one", expected=0) == 1
assert job.set(f"count {job.rank}", b"never", expected=0) is None
assert job.read(f"count {neighbour}", wait_s=60) == (b"one", 1)
try:
    job.set("count", b"never", expected=-1)
    raise AssertionError
except holdfast.UserError:
    pass
while True:  # Every rank adds one letter to the same value.
    value, version = job.read("letters") or (b"", 0)
    if job.set("letters", value + b"abc"[job.rank : job.rank + 1], version) is not None:
        break
value, version = b"", 0
while version < job.world_size:
    value, version = job.read("letters", 60, newer_than=version) or (b"", 0)
assert bytes(sorted(value)) == b"abc"
with job.open(private_bytes=1) as session:
    session.join()
    while session.version < 1:
        session.begin_step()
        hosts = session.hosts()
        assert [host.node_id for host in hosts] == [str(rank) for rank in range(job.world_size)]
        assert hosts[job.rank].pid == os.getpid()
        mine = bytes([job.rank]) * (100 * job.rank)  # Rank 0 gives no bytes.
        everyone = session.world.gather_bytes(mine)
        assert everyone == [bytes([rank]) * (100 * rank) for rank in range(job.world_size)]
        assert session.world.gather_bytes(b"") == [b""] * job.world_size
        session.end_step(holdfast.Step())
    session.end()
print("compared")
