"""MindSpore on Holdfast: `holdfast msrun ... script.py`; see docs/mindspore.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.mindspore._check_loss import CheckLoss
    from holdfast.mindspore._state import State


def install() -> None:
    """Have `import mindspore` in this process apply the shims. A second call does nothing."""
    from holdfast.mindspore import _hook

    _hook.install()


def __getattr__(name: str) -> Any:
    """Return State or CheckLoss, whose modules are imported only by programs that need them."""
    if name == "CheckLoss":
        from holdfast.mindspore import _check_loss

        return _check_loss.CheckLoss
    if name == "State":
        from holdfast.mindspore import _state

        return _state.State
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CheckLoss", "State", "install"]
