"""Serve a job whose script sets TLS: the scheduler's process runs the script up to init().

If a script asks for no TLS, the scheduler serves when the script imports MindSpore, and never loads
it (_role.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import holdfast
from holdfast.mindspore._imported import imported

# With a role in the environment, MindSpore's C++ would form its own cluster.
_HIDDEN: Final = ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT")


def run(load: Callable[[], None]) -> None:
    """Load MindSpore, and have MindSpore's init() serve the job and end the process."""
    hidden = {name: os.environ.pop(name) for name in _HIDDEN if name in os.environ}
    load()
    from holdfast.mindspore import _secure, _shims

    def tell(**named: Any) -> None:
        os.environ.update(hidden)  # With its role, the scheduler's certificate is used.
        try:
            holdfast.set_ps_context(**named)
        finally:
            for name in hidden:
                del os.environ[name]

    def init(backend_name: str | None = None) -> None:
        _secure.check()
        os.environ.update(hidden)
        holdfast.init().place  # noqa: B018 - a server serves in here, a scheduler before.

    _shims.use_cpu(None)  # The workers say that this runs on the CPU.
    _secure.apply(tell)
    for name in ("mindspore.communication.management", "mindspore.communication"):
        imported(name).init = init
