"""Start Holdfast where MindSpore is imported: the engine before MindSpore's code, shims after.

In a spare, the import of MindSpore ends only when the spare has a rank. Until then, only the
program's lines above the import have run. With --rehearse the program goes on to its training.
"""

from __future__ import annotations

import os

from holdfast.mindspore import _engine, _rehearsal
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._trainer import Trainer


def begin() -> Engine:
    """Make the engine."""
    return _engine.start()


def finish(engine: Engine) -> None:
    """Apply the shims to MindSpore. Then a spare waits for its place, or rehearses."""
    from holdfast.mindspore import _shims

    _shims.apply(engine, Trainer(engine))
    if engine.waits_spare and os.environ.get("HOLDFAST_REHEARSING_SPARES") == "1":
        _rehearsal.begin(engine)
    elif engine.waits_spare:
        _rehearsal.wait_for_place(engine)
