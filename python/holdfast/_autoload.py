"""Make the backend "holdfast" known as torch is imported: torch calls this (group torch.backends).

So a script under `holdfast run` needs nothing but init_process_group("holdfast"). In any other
process this does nothing, and `import holdfast.torch` registers the backend.
"""

from __future__ import annotations

import os
import sys


def register() -> None:
    """Import holdfast.torch if this is a worker of a job. Never fail: torch must stay usable."""
    if os.environ.get("MS_ROLE") != "MS_WORKER":
        return
    try:
        import holdfast.torch  # noqa: F401
    except Exception as error:
        print(f"holdfast: the backend was not registered: {error}", file=sys.stderr)
