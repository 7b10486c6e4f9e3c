"""The dying gasp: MindSpore's handlers write a last checkpoint of the version all agree on."""

from __future__ import annotations

import contextlib

import holdfast
from holdfast._errors import Error, MarkedError
from holdfast.mindspore import _last
from holdfast.mindspore._engine import Engine


def gasp(engine: Engine, session: holdfast.Session, saves: bool) -> None:
    """Write the checkpoint if this rank is to, and end the job. Return only if a fault came."""
    if not saves:
        with contextlib.suppress(MarkedError):
            session.world.barrier()  # Nobody comes: it ends with the job, or by the next fault.
        return
    if session.version == 0:
        raise engine.job.fail("a process was lost before the first step; there is nothing to save")
    try:
        where = _last.save(engine.place)
    except Error:
        raise
    except Exception as error:
        raise engine.job.fail(
            f"a process was lost, and its last checkpoint could not be written: {error}"
        ) from error
    raise engine.job.fail(f"a process was lost; the state after its last step is in {where}")
