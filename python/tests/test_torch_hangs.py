"""A rank that holds up the others is named, and replaced if its user says so; the bits stay."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from torch_job import LIMIT_S, Job, needs_torch

pytestmark = needs_torch

# Rank 1 hangs once, in the midst of a step. `evaluate`: all ranks do something else for 3 s. By
# then the first steps, which are long, count no more. `away`: it hangs before an exchange of a
# group in which the others are already; the group's ranks are all, but it is not the group of all
# ranks.
PROGRAM = """
import json, os, sys, threading, time, torch, torch.distributed as dist, holdfast.torch as hf
hf.init()
torch.set_num_threads(1)
how, folder = json.loads(sys.argv[1])["how"], sys.argv[2]

def spin():
    while True:
        pass

def block():
    threading.Event().wait()

def rest():
    time.sleep(3)

def away():
    spin()

def hang_once():
    try:
        open(f"{folder}/hung", "x").close()
    except FileExistsError:
        return
    longest = max(after - before for before, after in zip(began, began[1:]))
    print("hangs at", time.monotonic(), "after", longest, flush=True)
    globals()[how]()

torch.manual_seed(0)
model = torch.nn.Linear(32, 4)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = hf.State(ddp, optimizer)
rank, began = dist.get_rank(), []
group = dist.new_group([0, 1, 2]) if how == "away" else None
while state.n < 200:
    began = [*began[-40:], time.monotonic()]
    if how == "evaluate" and state.n == 150:
        time.sleep(3)
    with state.step():
        if rank == 1 and state.n == 150 and how in ("spin", "block", "rest", "away"):
            hang_once()
        if group is not None:
            dist.all_reduce(torch.ones(1), group=group)
        seed = torch.Generator().manual_seed(state.n * 7 + rank)
        optimizer.zero_grad()
        ddp(torch.randn(8, 32, generator=seed)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
bits = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
open(f"{folder}/result-{rank}", "w").write(json.dumps(bits))
"""


class Ended(NamedTuple):
    """What a job has left."""

    bits: object
    named: list[str]  # What the terminal said of ranks that hold up the job.
    delay_s: float  # From the hang until the first of it was said,
    limit_s: float  # which is less than this: 2 s, but more where the steps before took long.
    recoveries: int


def run(folder: Path, how: str, *options: str) -> Ended:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    job = Job(folder / how, {"how": how}, ranks=3, spares=1, program=program, options=options)
    assert job.process.stdout is not None
    hung, longest, seen, named = 0.0, 0.0, 0.0, []
    limit = threading.Timer(LIMIT_S, job.process.terminate)
    limit.start()
    try:
        for line in job.process.stdout:
            if found := re.search(r"hangs at (\S+) after (\S+)", line):
                hung, longest = float(found[1]), float(found[2])
            if "holds up the job" in line:
                named.append(line)
                seen = seen or time.monotonic()
        results = job.end()
    finally:
        limit.cancel()
        job.stop()
    assert len(results) == 3 and len({str(bits) for bits in results.values()}) == 1, job.logs()
    recoveries = job.recoveries() if "recoveries.jsonl" in os.listdir(job.folder / "log") else []
    return Ended(results[0], named, seen - hung, max(2, 1 + 3 * longest), len(recoveries))


def has_py_spy() -> bool:
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return bool(os.environ.get("HOLDFAST_PY_SPY") or shutil.which("py-spy", path=path))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    ended = run(tmp_path_factory.mktemp("undisturbed"), "evaluate")
    assert (ended.named, ended.recoveries) == ([], 0)  # All ranks do the same for 3 s.
    return ended.bits


@pytest.mark.parametrize("how", ["spin", "block", "away"])
def test_torch_a_rank_that_hangs_is_named_and_replaced(
    tmp_path: Path, undisturbed: object, how: str
) -> None:
    ended = run(tmp_path, how, "--hang-timeout", "4")
    assert ended.named and all("rank 1 " in line for line in ended.named), ended
    assert ended.delay_s < ended.limit_s, ended
    assert not has_py_spy() or f"{how} (" in ended.named[0], ended
    assert (ended.recoveries, ended.bits) == (1, undisturbed)


def test_torch_a_rank_that_rests_and_goes_on_is_named_once(
    tmp_path: Path, undisturbed: object
) -> None:
    ended = run(tmp_path, "rest")
    assert len(ended.named) == 1 and "rank 1 " in ended.named[0], ended
    assert ended.delay_s < ended.limit_s, ended
    assert (ended.recoveries, ended.bits) == (0, undisturbed)
