"""py-spy: by it the agent prints the stack of a Python process that holds up the others."""

from __future__ import annotations

import os
import shutil
import sys


def name_py_spy(environment: dict[str, str]) -> None:
    """Name the py-spy that lies beside this Python, as in a venv, unless another one is named."""
    found = shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if found and not environment.get("HOLDFAST_PY_SPY"):
        environment["HOLDFAST_PY_SPY"] = found
