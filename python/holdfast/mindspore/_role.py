"""Read a MindSpore process's role from its environment. Nothing heavy is imported here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NoReturn

from holdfast._say import say
from holdfast.mindspore import _script
from mindio_ttp import _switches

SERVING: Final = ("MS_SCHED", "MS_PSERVER", "MS_SERVER")  # They need no MindSpore.


def tell_rank(environment: dict[str, str] | os._Environ[str], rank: int | str) -> None:
    """Set the variables of a worker's rank as MindSpore's msrun does (_api.py:300)."""
    environment["RANK_ID"] = environment["DEVICE_ID"] = str(rank)


def tell_ranks(environment: dict[str, str] | os._Environ[str]) -> None:
    """Set the variables that a process of msrun finds before it imports MindSpore.

    The rank is 0 for the scheduler, and for a spare that is bound to no rank.
    """
    if not environment.get("HOLDFAST_AGENT") or not environment.get("MS_ROLE"):
        return
    environment["RANK_SIZE"] = environment.get("MS_WORKER_NUM", "1")
    node = environment.get("MS_NODE_ID", "")
    worker = environment.get("MS_ROLE") == "MS_WORKER"
    tell_rank(environment, node if node.isdigit() and worker else 0)


def before_import(help_to_save: Callable[[], NoReturn]) -> None:
    """Act in roles that need no MindSpore: a gasp's helper never returns.

    A scheduler's or server's process returns only if the script sets TLS: then it serves at init().
    """
    try:
        remarks = _switches.settle(os.environ)
    except ValueError as error:
        raise SystemExit(f"holdfast: {error}") from None
    role = os.environ.get("MS_ROLE")
    for remark in remarks if role != "MS_SCHED" else ():
        say(remark)
    if role in SERVING and not _script.sets_tls():
        import holdfast

        holdfast.init().place  # noqa: B018 - serves the job and exits in here.
    rehearses = bool(os.environ.get("HOLDFAST_REHEARSE"))
    if role == "MS_WORKER" and _switches.gasp(os.environ) and not rehearses:
        replaces = int(os.environ.get("HOLDFAST_ATTEMPT") or 0) > 1
        if replaces or os.environ.get("HOLDFAST_SPARE_FD"):
            help_to_save()
