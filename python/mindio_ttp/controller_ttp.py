"""MindIO's functions for a cluster manager (MindCluster), which Holdfast does not have.

In Holdfast the scheduler decides by itself. So these functions only keep what they are given, or do
nothing and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindio_ttp._registry import registry

_ACTIONS = ("report_fault_ranks", "report_stop_complete", "report_strategies", "report_result")


def tft_register_mindx_callback(action: str, func: Callable[..., Any]) -> int:
    """Keep a cluster manager's function. It is never called: nobody asks for a strategy."""
    if action not in _ACTIONS:
        raise ValueError(f"there is no action '{action}'; there are {', '.join(_ACTIONS)}")
    registry.mindx[action] = func
    return 0


def _nothing(what: str) -> int:
    registry.say_once(f"{what} has no effect: Holdfast's scheduler decides by itself")
    return 0


def tft_notify_controller_stop_train(fault_ranks: dict[int, int], *more: Any) -> int:
    """Do nothing: the loss of a process is noticed by itself."""
    return _nothing("tft_notify_controller_stop_train")


def tft_notify_controller_on_global_rank(fault_ranks: dict[int, int], *more: Any) -> int:
    """Do nothing: the loss of a process is noticed by itself, and so is its rank."""
    return _nothing("tft_notify_controller_on_global_rank")


def tft_notify_controller_prepare_action(action: str, *more: Any) -> int:
    """Do nothing: hot switching is not offered."""
    return _nothing("tft_notify_controller_prepare_action")


def tft_notify_controller_change_strategy(strategy: str, *more: Any) -> int:
    """Do nothing: MS_ENABLE_TFT says whether a lost process is replaced or ends the job."""
    return _nothing("tft_notify_controller_change_strategy")


def tft_notify_controller_dump(ranks: Sequence[int] = (), *more: Any) -> int:
    """Do nothing: without a fault, the trainer itself writes checkpoints."""
    return _nothing("tft_notify_controller_dump")


def tft_query_high_availability_switch() -> bool:
    """Return whether MS_ENABLE_TFT switches TTP, UCE, ARF or HCCE on."""
    return any(registry.switch(name) for name in ("TTP", "UCE", "ARF", "HCCE"))
