"""Copies the working folder for each run, so that all runs begin with the same files.

Large files and large folders, such as data and environments, are not copied but linked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

_FILE: Final = 16 << 20  # Most bytes of a file that is copied.
_FOLDER_FILES: Final = 2000  # Most files in a folder that is copied.
_FOLDER_BYTES: Final = 256 << 20  # Most bytes in such a folder.
_LEFT_OUT: Final = frozenset((".git", "__pycache__", "holdfast-logs", ".pytest_cache"))


def mirror(source: Path, target: Path, without: Path) -> list[str]:
    """Copy `source` except for the folder `without`; return the folders that became links."""
    target.mkdir(parents=True)
    links: list[str] = []
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        path, copy = Path(entry.path), target / entry.name
        if entry.name in _LEFT_OUT or path.resolve() == without.resolve():
            continue
        if entry.is_symlink():
            os.symlink(path.resolve(), copy)
        elif entry.is_dir():
            if _is_large(path):
                os.symlink(path.resolve(), copy)
                links.append(entry.name)
            else:
                links += [f"{entry.name}/{name}" for name in mirror(path, copy, without)]
        elif entry.is_file():
            if entry.stat().st_size > _FILE:
                os.symlink(path.resolve(), copy)
            else:
                shutil.copy2(path, copy)
    return links


def _is_large(folder: Path) -> bool:
    """Return whether a folder is too large to copy, or is a virtual environment."""
    if (folder / "pyvenv.cfg").exists():
        return True
    files = size = 0
    for where, _, names in os.walk(folder):
        files += len(names)
        size += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
        if files > _FOLDER_FILES or size > _FOLDER_BYTES:
            return True
    return False


def made(source: Path, target: Path) -> dict[str, Path]:
    """Return the files that a run made or changed in its copy, by their relative names."""
    found: dict[str, Path] = {}
    for where, folders, names in os.walk(target):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(where) / name
            relative = path.relative_to(target)
            if path.is_symlink() or not path.is_file():
                continue
            before = source / relative
            if not before.is_file() or digest_of(before) != digest_of(path):
                found[str(relative)] = path
    return found


def digest_of(path: Path) -> str:
    """Return a digest of a file."""
    with open(path, "rb") as file:
        found = hashlib.blake2b(digest_size=8)
        while words := file.read(1 << 20):
            found.update(words)
    return found.hexdigest()
