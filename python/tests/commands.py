"""Commands that must not find what a test's own environment has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*words: str, folder: Path, code: int = 0, **more: str) -> str:
    """Run a command that finds neither this source tree nor a build; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout
