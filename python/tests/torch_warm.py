"""Programs without faults, as children of one process that has PyTorch already.

To import PyTorch costs each process four seconds of a processor. What is killed and replaced pays
that, as a user's would: `holdfast run` starts it. What it is compared with need not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import secrets
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch_job import HERE, LIMIT_S

from holdfast._launch import free_port

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.fsdp"])


def _live(
    log: str, environment: dict[str, str], life: Callable[..., Any], words: list[str]
) -> None:
    """Be such a process."""
    os.environ.update(environment)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(Path(log).parent)
    life(*words)


def _program(*words: str) -> None:
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")


def _text(text: str) -> None:
    exec(compile(text, "program", "exec"), {"__name__": "__main__"})


def _started(*arguments: Any) -> BaseProcess:
    os.environ["OMP_NUM_THREADS"] = "1"  # Of the first one's server: it is read with PyTorch.
    process = _CONTEXT.Process(target=_live, args=arguments)
    process.start()
    return process


def say(text: str, log: Path) -> str:
    """Run a text as a program that is a world of its own; return what it writes."""
    process = _started(str(log), {}, _text, [text])
    try:
        process.join(LIMIT_S)
    finally:
        process.kill()
    process.join()
    assert process.exitcode == 0, log.read_text()
    return log.read_text()


def undisturbed(
    folder: Path, words: list[str], ranks: int, environment: dict[str, str] | None = None
) -> None:
    """Run a job whose processes were started by hand; folder/warm-<rank> is what each writes."""
    common = {
        **(environment or {}),
        "HOLDFAST_JOB": f"warm-{os.getpid()}-{secrets.token_hex(6)}",
        "MS_WORKER_NUM": str(ranks),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(free_port()),
    }
    roles = [("MS_SCHED", "scheduler"), *(("MS_WORKER", str(rank)) for rank in range(ranks))]
    processes: list[BaseProcess] = []
    try:
        for role, node in roles:
            mine = {**common, "MS_ROLE": role}
            if role == "MS_WORKER":
                mine["MS_NODE_ID"] = node
            processes.append(_started(str(folder / f"warm-{node}"), mine, _program, words))
        for process in processes:
            process.join(LIMIT_S)
    finally:
        for process in processes:
            process.kill()
            process.join()
    said = "".join(f"--- {f}\n{f.read_text()}" for f in sorted(folder.glob("warm-*")))
    assert [process.exitcode for process in processes] == [0] * len(processes), said


def calm(folder: Path, config: dict[str, Any], ranks: int = 2) -> dict[int, dict[str, Any]]:
    """Return the results of torch_program.py without faults."""
    folder.mkdir()
    program = str(HERE / "torch_program.py")
    undisturbed(folder, [program, json.dumps(config), str(folder)], ranks)
    return {rank: json.loads((folder / f"result-{rank}").read_text()) for rank in range(ranks)}
