"""OUT: it appears when it is whole. Until then it has another name beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast._errors import UserError

# What a folder that was exported may hold: --force removes no other.
_OURS: Final = re.compile(r"rank-\d+(\.\w+)?|\.metadata|__\d+_\d+\.distcp", re.ASCII)


def see_that_it_may_be_made(out: Path, force: bool) -> None:
    """Refuse an OUT that is there already, or that can not be there."""
    if not out.parent.is_dir():
        raise UserError(f"cannot make {out}: there is no folder {out.parent}")
    if not os.path.lexists(out):
        return
    if not force:
        raise UserError(f"{out} is there already; --force replaces it")
    if out.is_dir() and not out.is_symlink() and (other := _other_than_ours(out)):
        raise UserError(f"{out} is not replaced: it has {other}, which was not exported")


def _other_than_ours(folder: Path) -> str:
    for where, _, files in os.walk(folder):
        for name in files:
            if not _OURS.fullmatch(name):
                return os.path.join(where, name)
        if any(not _OURS.fullmatch(part) for part in Path(where).relative_to(folder).parts):
            return where
    return ""


@contextlib.contextmanager
def draft_of(out: Path, force: bool) -> Iterator[Path]:
    """Yield a path to be filled with a file or a folder; afterwards it is OUT, on the disk."""
    see_that_it_may_be_made(out, force)
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name[:80]}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"cannot write in {out.parent}: {error.strerror}") from None
    try:
        draft = beside / out.name
        yield draft
        _sync(draft)
        see_that_it_may_be_made(out, force)
        if out.is_dir() and not out.is_symlink():
            out.rename(beside / "before")
        os.replace(draft, out)
        _sync_one(out.parent)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sync(path: Path) -> None:
    for part in sorted(path.rglob("*")) if path.is_dir() else ():
        _sync_one(part)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
