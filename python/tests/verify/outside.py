"""A program without a framework; its loss follows a counter that its state does not hold."""

import struct
import sys

import holdfast

KEPT = "kept" in sys.argv[1:]

with holdfast.init().open(private_bytes=8, own_private=True) as session:
    if session.fresh:
        session.private(0)[:] = bytes(8)
    session.join()
    count = 0
    while session.version < 3000:
        session.begin_step()
        (kept,) = struct.unpack("<q", session.private(session.version))
        count += 1
        session.world.barrier()
        session.private(session.version + 1)[:] = struct.pack("<q", kept + 1)
        session.end_step(holdfast.Step(loss=float(kept + 1 if KEPT else count)))
