"""MindSpore on Holdfast: unmodified data-parallel scripts go on through the death of processes.

Nothing has to be called: `holdfast msrun ... script.py` and `python -m holdfast.mindspore x.py`
put a hook in Python's path, by which `import mindspore` ends with this package's shims applied.
docs/mindspore.md says what works, what is emulated and what is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.mindspore._role import TRIED_VERSIONS

if TYPE_CHECKING:
    from holdfast.mindspore._state import State


def install() -> None:
    """Let `import mindspore` in this process end with the shims applied; again: nothing."""
    from holdfast.mindspore import _hook

    _hook.install()


def __getattr__(name: str) -> Any:
    """Give State, whose module is not needed by every program."""
    if name == "State":
        from holdfast.mindspore import _state

        return _state.State
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["TRIED_VERSIONS", "State", "install"]
