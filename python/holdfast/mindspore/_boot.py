"""Start Holdfast in a process that imports MindSpore: the engine before its code, the shims after.

A spare ends its import of MindSpore when it has a rank, and not before: of the program only what
stands above that line has run until then. With --rehearse it goes on, and plays all ranks.
"""

from __future__ import annotations

import os

from holdfast.mindspore import _engine, _rehearsal, _script, _trainer
from holdfast.mindspore._engine import Engine, say


def begin() -> Engine:
    """Make the engine."""
    engine = _engine.start()
    engine.trainer = _trainer.Trainer(engine)
    if os.environ.get("HOLDFAST_REHEARSE") == "1":
        engine.lead = _rehearsal.lead
    return engine


def finish(engine: Engine) -> None:
    """Apply the shims to MindSpore, which is imported; then a spare waits for its place."""
    from holdfast.mindspore import _shims

    _shims.apply(engine)
    if engine.waits_spare and engine.lead is None:
        say("this spare has imported MindSpore and waits for a place")
        rank = engine.place.rank
        if rank and _script.asks_for_rank_before_import():
            _rehearsal.begin_anew(rank)
