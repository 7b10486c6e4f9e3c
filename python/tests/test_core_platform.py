"""On another system than Linux, the import and the install end with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
NAMES = {"darwin": "macOS", "win32": "Windows", "freebsd14": "another system"}


def run_as(platform: str, code: str, exit_code: int, *paths: Path) -> str:
    """Run code in a Python that says that it runs on another system; return what it said."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.platform = {platform!r}\n{code}"],
        cwd=ROOT,  # Where pyproject.toml is.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout
    return done.stdout


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("module", ["holdfast", "holdfast.torch", "holdfast.cli"])
def test_core_the_import_on_another_system_ends_with_one_sentence(
    platform: str, module: str
) -> None:
    said = run_as(platform, f"import {module}", 1, Path(holdfast.__file__).parents[1])
    last = said.splitlines()[-1]
    assert last.startswith(
        f"ImportError: Holdfast runs on Linux; this is {NAMES[platform]} ({platform}). "
    ), said


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_core_the_install_on_another_system_ends_before_a_compiler_is_looked_for(
    platform: str, tmp_path: Path
) -> None:
    code = f"from scikit_build_core.build import build_wheel\nbuild_wheel({str(tmp_path)!r})"
    said = run_as(platform, code, 7)
    assert "Holdfast runs on Linux, and this is another system: " in said
    assert "CMake" not in said and "compiler" not in said
    assert not list(tmp_path.iterdir())
