"""torchrun's options that mean nothing here, or that are refused, and why.

python/tests/test_torch_options.py holds this against torch's own parser.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from holdfast._nodes import fail

# For torchrun's own agents. Nothing that a program could notice depends on them here.
WITHOUT_EFFECT: Final = {
    "rdzv_backend": "the job's own scheduler is where its processes meet",
    "rdzv_conf": "the job's own scheduler is where its processes meet",
    "local_addr": "the job uses the address by which a host reaches --rdzv-endpoint",
    "monitor_interval": "the end of a process is noticed at once",
    "start_method": "no process is forked from the launcher",
}
REFUSED: Final = {
    "virtual_local_rank": "programs find their rank in LOCAL_RANK; have them choose their device",
    "logs_specs": "the logs are files in --log-dir; -r, -t and --local-ranks-filter choose what "
    "the terminal shows",
    "event_log_handler": "what happens is in recoveries.jsonl in --log-dir, and `holdfast explain` "
    "tells it",
    "numa_binding": "have numactl start the program: --no-python numactl --localalloc python "
    "PROGRAM",
}
# Nothing is asked for by these.
_HARMLESS: Final = {"event_log_handler": "null"}

_ENDS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_ASKED: Final = ("SIGUSR1", "SIGUSR2")
_COUNT: Final = (
    "import torch, sys\n"
    "try: kind = torch.accelerator.current_accelerator(True) if sys.argv[1] == 'auto' else None\n"
    "except AttributeError: kind = None\n"
    "name = kind.type if kind else {'gpu': 'cuda', 'auto': 'cuda'}.get(sys.argv[1], sys.argv[1])\n"
    "m = getattr(torch, name, None)\n"
    "print(m.device_count() if m is not None and m.is_available() else 0)\n"
)


def said_of(options: argparse.Namespace) -> list[str]:
    """Return what to say of options without effect; end if there is one that is refused."""
    for name, why in REFUSED.items():
        if getattr(options, name) not in (None, False, _HARMLESS.get(name)):
            fail(f"--{name.replace('_', '-')} is not offered: {why}")
    given: dict[str, list[str]] = {}
    for name, why in WITHOUT_EFFECT.items():
        if getattr(options, name) is not None:
            given.setdefault(why, []).append(f"--{name.replace('_', '-')}")
    return [f"{', '.join(names)}: without effect, since {why}" for why, names in given.items()]


def devices(kind: str) -> int:
    """Return how many processes --nproc-per-node=auto, cpu, gpu or xpu are."""
    cores = len(os.sched_getaffinity(0))
    none = not any(Path("/dev").glob("nvidia[0-9]*")) and not any(
        Path(path).exists() for path in ("/dev/kfd", "/dev/dri", "/dev/dxg")
    )
    if kind == "cpu" or (kind == "auto" and none):
        return cores
    found = 0 if none else _counted_by_torch(kind)
    if not found and kind != "auto":
        fail(
            f"--nproc-per-node is '{kind}', and torch finds no such device here: write a number, "
            "or 'cpu', a process for each core"
        )
    return found or cores


def _counted_by_torch(kind: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, kind], stdout=subprocess.PIPE, text=True, check=False
    )
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 0


def more_that_end(text: str) -> tuple[str, ...]:
    """Return which of SIGUSR1 and SIGUSR2 --signals-to-handle names: they end the job then."""
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in (*_ENDS, *_ASKED):
            fail(
                f"--signals-to-handle has '{name}'; allowed are "
                f"{', '.join(_ENDS)}, which always end the job, and {', '.join(_ASKED)}"
            )
    return tuple(name for name in _ASKED if name in named)
