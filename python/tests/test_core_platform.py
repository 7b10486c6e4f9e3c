"""On another system than Linux, the import and the install end with one sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import run

import holdfast

ROOT = Path(__file__).parents[2]
NAMES = {"darwin": "macOS", "win32": "Windows", "freebsd14": "another system"}


def run_as(platform: str, code: str, exit_code: int, *paths: Path) -> str:
    """Run code in a Python that says that it runs on another system; return what it said."""
    code = f"import sys\nsys.platform = {platform!r}\n{code}"
    where = os.pathsep.join(map(str, paths))
    # The folder is where pyproject.toml is.
    return run(sys.executable, "-c", code, folder=ROOT, code=exit_code, PYTHONPATH=where)


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
