"""Holdfast: training that goes on through the death of its processes, with the same bits.

A trainer written from scratch needs init() and a Session. PyTorch programs use holdfast.torch.

    job = holdfast.init()
    with job.open(private_bytes=1 << 20) as session:
        if session.fresh:  # Nothing is committed yet.
            session.private(0)[:] = first state
        session.join()  # All ranks go on from the same version.
        state = bytes(session.private(session.version))
        while session.version < steps:
            if session.begin_step():  # A fault came: restore what is committed.
                state = bytes(session.private(session.version))
            n = session.version + 1
            ...  # Compute; session.world has the collectives.
            session.private(n)[:] = new state
            if session.end_step(holdfast.Step(loss=loss)):  # Void: restore and replay.
                state = bytes(session.private(session.version))
"""

from typing import TYPE_CHECKING

from holdfast._abi import NO_VERSION, DType, Op, Optimizer, Status
from holdfast._core import Place, Position, Session, Step, Worker
from holdfast._errors import Error, LeftError, MarkedError, PeerError, UserError, WorldError
from holdfast._exchange import Group, Work
from holdfast._hosts import Host
from holdfast._secure import set_ps_context
from holdfast.job import Job, init

__version__: str
__all__ = [
    "NO_VERSION",
    "DType",
    "Error",
    "Group",
    "Host",
    "Job",
    "LeftError",
    "MarkedError",
    "Op",
    "Optimizer",
    "PeerError",
    "Place",
    "Position",
    "Session",
    "Status",
    "Step",
    "UserError",
    "Work",
    "Worker",
    "WorldError",
    "__version__",
    "init",
    "set_ps_context",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("holdfast")
