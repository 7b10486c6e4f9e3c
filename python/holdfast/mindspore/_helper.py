"""Take the place of a lost process while the others write their last checkpoint.

A helper does not train and does not import MindSpore. It makes the group whole again within
milliseconds, so that all ranks agree on one version before one of them writes it.
"""

from __future__ import annotations

import os
from typing import NoReturn

import holdfast
from holdfast._errors import Error, MarkedError
from holdfast._replicas import Replicas
from holdfast._say import say
from holdfast.mindspore import _engine, _image
from holdfast.mindspore._steps import HELPER, hello


def run() -> NoReturn:
    """Help, then exit. A spare that is not needed ends here with the job."""
    job = holdfast.init()
    place = job.place
    size = _engine.private_bytes(place.directory)
    if size is None:
        raise job.fail(
            f"rank {place.rank} was lost before the first step, so there is nothing to save"
        )
    if size == _engine.PLAIN_BYTES:
        raise job.fail(
            f"rank {place.rank} was lost in a loop of the program's own, of which nothing is kept, "
            "so there is nothing to save; Model.train is protected, or leave MS_ENABLE_TFT unset: "
            "then all processes start again from the top"
        )
    try:
        session = job.open(private_bytes=size, own_later=True)
        session.join()
        replicas = Replicas(session, None)
        while True:
            session.begin_step()
            replicas.compare()  # The others do, and this process has none.
            try:
                everyone = hello(session, HELPER, bytes(16), bytes(8))
                if all(one.kind == HELPER for one in everyone):
                    _save_alone(job, session)
                session.world.barrier()  # Ends with the job, or by a fault.
            except MarkedError:
                continue
    except Error as error:
        say(str(error))
        os._exit(1)


def _save_alone(job: holdfast.Job, session: holdfast.Session) -> None:
    """Save the checkpoint if no process of the training is left."""
    if session.world.rank == 0:
        from holdfast.mindspore import _last

        values, objects = _image.contents(session.private(session.version))
        raise job.fail(_last.save_image(values, objects, job.place))
