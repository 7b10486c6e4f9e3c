"""What a rank's part of a snapshot is read as, whichever face of Holdfast has written it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from holdfast._errors import UserError
from holdfast._snapshot_files import Snapshot
from holdfast.snapshots._arena import Part
from holdfast.snapshots._floats import Floats
from holdfast.snapshots._mindspore import MAGIC as OF_MINDSPORE
from holdfast.snapshots._mindspore import MindSporeImage
from holdfast.snapshots._torch import MAGIC as OF_TORCH
from holdfast.snapshots._torch import TorchImage

Source = TorchImage | MindSporeImage | Floats


def need(module: str) -> None:
    """Refuse a Python without a package."""
    if find_spec(module) is None:
        raise UserError(
            f"this needs {module}, which {sys.executable} does not have: run `python -m "
            "holdfast snapshot ...` with a Python that has it"
        )


def source_of(snapshot: Snapshot, rank: int) -> Source:
    """Read a rank's part."""
    part = Part(snapshot, rank)
    if (at := part.image(OF_TORCH)) is not None:
        need("torch")
        return TorchImage(part, at)
    if (at := part.image(OF_MINDSPORE)) is not None:
        return MindSporeImage(part, at)
    return Floats(part, snapshot.version)
