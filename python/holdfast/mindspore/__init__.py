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
    from holdfast.mindspore._vars import Vars


def install() -> None:
    """Let `import mindspore` in this process end with the shims applied; again: nothing."""
    from holdfast.mindspore import _hook

    _hook.install()


def __getattr__(name: str) -> Any:
    """Give State and Vars, whose modules are not needed by every program."""
    if name in ("State", "Vars"):
        from holdfast.mindspore import _state, _vars

        return {"State": _state.State, "Vars": _vars.Vars}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["TRIED_VERSIONS", "State", "Vars", "install"]
