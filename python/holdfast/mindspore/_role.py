"""What a process of a MindSpore job is for, by its environment; nothing heavy is imported here."""

from __future__ import annotations

import os

# MindSpore itself only looks for these texts in MS_ENABLE_TFT.
_REPLACE = "ARF:1"
_GASP = ("TTP:1", "UCE:1")


def gasps(environment: dict[str, str] | None = None) -> bool:
    """Return whether a lost process ends the job with a last checkpoint, and is not replaced."""
    switches = (os.environ if environment is None else environment).get("MS_ENABLE_TFT", "")
    return _REPLACE not in switches and any(switch in switches for switch in _GASP)


def before_import() -> None:
    """Do what needs no MindSpore: a scheduler and the helper of a dying gasp never return."""
    role = os.environ.get("MS_ROLE")
    if role in ("MS_PSERVER", "MS_SERVER"):
        raise SystemExit(
            f"MS_ROLE={role}: parameter servers are not there: MindSpore 2.10 has removed what "
            "their programs call (set_param_ps), and Holdfast does not bring it back"
        )
    if role == "MS_SCHED":
        import holdfast

        holdfast.init()  # Serves the job and exits in here.
    if role == "MS_WORKER" and gasps():
        replaces = int(os.environ.get("HOLDFAST_ATTEMPT") or 0) > 1
        if replaces or os.environ.get("HOLDFAST_SPARE_FD"):
            from holdfast.mindspore import _helper

            _helper.run()
