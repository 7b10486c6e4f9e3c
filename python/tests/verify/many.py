"""Six ways at once to remember what State does not hold: for a test that starts few processes."""

import os
from collections.abc import Callable

import helper
import numpy as np
import torch
from common import KEPT, Task, say

import holdfast.torch as hf


class Meter:
    total = 0


def make_counter() -> Callable[[], int]:
    closed = 0

    def count() -> int:
        nonlocal closed
        closed += 1
        return closed

    return count


task = Task()
state = hf.State(task.model, task.optimizer)
count = make_counter()
matrix, counts = np.zeros((100, 100), np.int64), [0] * 1000
run = (
    state.vars(closed=0, total=0, seen=0, matrix=matrix, counts=counts, best=10.0) if KEPT else None
)
rate = 0.0
for epoch in state.epochs(2):
    running = 0.0
    for x, y in state.steps(task.loader):
        loss = task.learn(x, y, rate=0.01)
        if run is not None:
            run.closed += 1
            run.total += len(x)
            run.seen += len(x)
            run.matrix[y[0], y[1]] += 1
            run.counts[y[0]] += 1
            run.best = min(run.best, loss)
        else:
            rate = 0.1 / count()
            Meter.total += len(x)
            helper.see(len(x))
            matrix[y[0], y[1]] += 1
            counts[y[0]] += 1
            running += loss
    task.model.eval()
    with torch.no_grad():
        accuracy = state.once(lambda: float(task.model.module(torch.ones(1, 8)).sum()))
    task.model.train()
    say(f"accuracy {accuracy:.4f}")
    if run is None:
        say(f"running {running:.4f}", "rate", rate)
    if os.environ["RANK"] == "0":
        torch.save({"model": task.model.module.state_dict(), "epoch": epoch}, "model.pt")
if run is not None:
    say(run.closed, run.total, run.seen, run.matrix.sum(), run.counts[:4], run.best)
else:
    say(Meter.total, helper.seen, matrix.sum(), counts[:4])
