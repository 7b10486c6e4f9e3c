"""Programs as children of one process that has PyTorch already.

The import of PyTorch costs each process four seconds of a processor. Processes of `holdfast run`
pay that, as a user's do. Undisturbed runs, and jobs that are started by hand, need not.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import secrets
import signal
import sys
import time
import types
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch_job import HERE, LIMIT_S

from holdfast._launch import free_port

# For programs: refused(text, call) checks that a call raises a UserError with a text.
REFUSED = """
from holdfast import UserError
def refused(text, call):
    try:
        call()
    except UserError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
"""
_KILLED = (-signal.SIGKILL, -signal.SIGBUS)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.fsdp"])


def _live(
    log: str, environment: dict[str, str], life: Callable[..., Any], words: list[str]
) -> None:
    """Run one process of a job: `life` with `words`, its output in `log`."""
    os.environ.update(environment)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(Path(log).parent)
    multiprocessing.set_start_method("fork", force=True)  # As usual in a program.
    try:
        life(*words)
    finally:
        atexit._clear()  # From Python 3.13 on, a child would call what a text has registered.


def _program(*words: str) -> None:
    """Run a program to its end: its exit handlers run while its variables still exist."""
    sys.argv = list(words)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = words[0]
    try:
        exec(compile(Path(words[0]).read_text(), words[0], "exec"), main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    atexit._run_exitfuncs()


def _text(text: str) -> None:
    exec(compile(text, "program", "exec"), {"__name__": "__main__"})


def _started(*arguments: Any) -> BaseProcess:
    os.environ["OMP_NUM_THREADS"] = "1"  # Of the first one's server: it is read with PyTorch.
    process = _CONTEXT.Process(target=_live, args=arguments)
    process.start()
    return process


def say(text: str, log: Path) -> str:
    """Run a text as a program without a job; return its output."""
    process = _started(str(log), {}, _text, [text])
    try:
        process.join(LIMIT_S)
    finally:
        process.kill()
    process.join()
    assert process.exitcode == 0, log.read_text()
    return log.read_text()


def by_hand(
    folder: Path,
    words: list[str],
    ranks: int,
    environment: dict[str, str] | None = None,
    deaths: int = 0,
) -> tuple[bool, str]:
    """Run a job whose processes are started by hand; each writes to folder/warm-<rank>.

    `deaths`: how many are killed and replaced. Returns whether it ended well, and what it said.
    """
    common = {
        **(environment or {}),
        "HOLDFAST_JOB": f"warm-{os.getpid()}-{secrets.token_hex(6)}",
        "MS_WORKER_NUM": str(ranks),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(free_port()),
    }

    def start(node: str) -> BaseProcess:
        role = {"MS_ROLE": "MS_SCHED"}
        if node != "scheduler":
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": node}
        return _started(str(folder / f"warm-{node}"), {**common, **role}, _program, words)

    def said() -> str:
        return "".join(f"--- {f}\n{f.read_text()}" for f in sorted(folder.glob("warm-*")))

    lives = {node: start(node) for node in ("scheduler", *map(str, range(ranks)))}
    under_way, until, failed = dict(lives), time.monotonic() + LIMIT_S, False
    given_up = dict.fromkeys(lives, 0)
    try:
        while under_way and not failed:
            connection.wait([p.sentinel for p in under_way.values()], until - time.monotonic())
            assert time.monotonic() < until, f"the job hangs\n{said()}"
            for node, process in list(under_way.items()):
                if process.exitcode is None:
                    continue
                del under_way[node]
                log = (folder / f"warm-{node}").read_text()
                gives_up = log.count("MarkedError: ") > given_up[node]  # All start again then.
                given_up[node] += gives_up
                if gives_up or (process.exitcode in _KILLED and deaths):
                    deaths -= not gives_up
                    lives[node] = under_way[node] = start(node)
                else:
                    failed |= process.exitcode != 0
    finally:
        for process in lives.values():
            process.kill()
            process.join()
    assert failed or not deaths, f"{deaths} were not killed\n{said()}"
    return not failed, said()


def undisturbed(
    folder: Path, words: list[str], ranks: int, environment: dict[str, str] | None = None
) -> None:
    """Run a job by hand without kills, and assert that it ends well."""
    ended_well, said = by_hand(folder, words, ranks, environment)
    assert ended_well, said


def calm(folder: Path, config: dict[str, Any], ranks: int = 2) -> dict[int, dict[str, Any]]:
    """Return the results of torch_program.py without faults."""
    folder.mkdir()
    program = str(HERE / "torch_program.py")
    undisturbed(folder, [program, json.dumps(config), str(folder)], ranks)
    return {rank: json.loads((folder / f"result-{rank}").read_text()) for rank in range(ranks)}
