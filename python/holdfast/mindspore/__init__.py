"""MindSpore on Holdfast: unmodified data-parallel scripts go on through the death of processes.

Nothing has to be called: `holdfast msrun ... script.py` and `python -m holdfast.mindspore x.py`
put a hook in Python's path, by which `import mindspore` ends with this package's shims applied.
docs/mindspore.md says what works, what is emulated and what is not there.
"""

from __future__ import annotations

from typing import Final

TRIED_VERSIONS: Final = ("2.7.1", "2.8.0", "2.9.0", "2.10.0")


def install() -> None:
    """Let `import mindspore` in this process end with the shims applied; again: nothing."""
    from holdfast.mindspore import _hook

    _hook.install()


__all__ = ["TRIED_VERSIONS", "install"]
