"""Gradients that a program does not drop survive a fault; those that it drops are not copied."""
# With --ci: jobs of many shapes.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import run

torch = pytest.importorskip("torch")

from holdfast._errors import UserError  # noqa: E402
from holdfast.torch._gradients import Gradients  # noqa: E402
from holdfast.torch._image import Kept  # noqa: E402


def images(steps: int, drops: Any) -> tuple[list[bool], Gradients]:
    """Return which of the steps' images hold gradients."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = Kept()
    kept.add("model", model)
    gradients = Gradients(kept)
    gradients.restore(gradients.objects())  # As State does when it has its image.
    gradients.watch()
    optimizer.register_step_post_hook(lambda *_: gradients.see_update(optimizer))
    held = []
    for n in range(steps):
        drops(n, "start", optimizer)
        loss = model(torch.ones(1, 2)).sum()
        drops(n, "middle", optimizer)
        loss.backward()
        optimizer.step()
        drops(n, "end", optimizer)
        held.append(gradients.end_step(True))
        if n == 1:  # As after a void step.
            gradients.restore(gradients.objects())
            gradients.watch()
    return held, gradients


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_torch_a_program_that_drops_its_gradients_pays_for_them_in_two_steps(
    place: str, to_none: bool
) -> None:
    held, gradients = images(
        6, lambda _, at, optimizer: at == place and optimizer.zero_grad(set_to_none=to_none)
    )
    assert held[2:] == [False] * 4
    assert len(gradients._hooks) == 1 and len(gradients._left) <= 1


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("first", [0, 1, 99])
def test_torch_gradients_that_are_not_dropped_in_each_step_are_held(
    first: int, place: str, to_none: bool
) -> None:
    held, gradients = images(
        6,
        lambda n, at, optimizer: (
            at == place and n % 2 == first and optimizer.zero_grad(set_to_none=to_none)
        ),
    )
    assert held == [True] * 6
    assert not gradients._hooks and not gradients._left


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("place", ["start", "end"])
def test_torch_gradients_that_only_the_first_steps_drop_are_refused(
    place: str, to_none: bool
) -> None:
    def drops(n: int, at: str, optimizer: Any) -> None:
        if at == place and n < 4:
            optimizer.zero_grad(set_to_none=to_none)

    with pytest.raises(UserError, match="adds to gradients that an update left"):
        images(6, drops)


PROGRAM = """
import contextlib, json, os, signal, sys, torch, torch.distributed as dist, holdfast.torch as hf
config, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
hf.init()
rank = dist.get_rank()
torch.manual_seed(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.side = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    def forward(self, x, both):
        return self.body(x) + (self.side(x) if both else 0)
model = torch.nn.parallel.DistributedDataParallel(
    Net(), find_unused_parameters=config["unused"], gradient_as_bucket_view=config["view"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
state = hf.State(model, optimizer)
data = [torch.randn(3, 4, generator=torch.Generator().manual_seed(8 * rank + i)) for i in range(4)]
def body(x):
    if state.n % config["every"] == 0:
        optimizer.zero_grad(set_to_none=config["to_none"])
    (model(x, state.n % 3 != 2 or not config["unused"]) ** 2).mean().backward()
    if [rank, state.n] in config["kills"] and not os.path.exists(f"{folder}/killed-{state.n}"):
        open(f"{folder}/killed-{state.n}", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if not accumulates():
        optimizer.step()
def accumulates():
    return config["alone"] and state.n % 2 == 0
if config["own"]:
    while state.n < 10:
        with model.no_sync() if accumulates() else contextlib.nullcontext():
            with state.step():
                body(data[state.n % 4])
else:
    for x in state.steps(data[:2], epochs=5):
        body(x)
result = [state.n] + [p.tolist() for p in model.parameters()]
result += [optimizer.state[p]["momentum_buffer"].tolist() for p in model.parameters()]
json.dump(result, open(f"{folder}/result-{rank}", "w"))
dist.destroy_process_group()
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    ("every", "to_none", "own", "alone", "view", "unused", "ranks", "spares"),
    [
        (99, True, False, False, True, True, 2, 0),
        (2, True, True, False, False, True, 2, 1),
        # A parameter without a new gradient is updated by zeros.
        (1, False, True, False, False, True, 2, 0),
        # DDP divides by 3 what lies in its buckets, and multiplies by a third what does not.
        (1, False, True, False, True, False, 3, 0),
        (99, True, False, False, True, False, 3, 1),
        # Rank 0 is killed in a step within no_sync().
        (2, False, True, True, True, False, 3, 0),
    ],
    ids=[
        "not at all",
        "in every second step",
        "to zeros",
        "to zeros, of 3",
        "not at all, of 3",
        "within no_sync, of 3",
    ],
)
def test_torch_a_fault_does_not_change_what_gradients_are_added_to(
    tmp_path: Path,
    every: int,
    to_none: bool,
    own: bool,
    alone: bool,
    view: bool,
    unused: bool,
    ranks: int,
    spares: int,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = {"every": every, "to_none": to_none, "own": own, "alone": alone}
    config |= {"view": view, "unused": unused}
    calm = run(tmp_path / "calm", {**config, "kills": []}, ranks=ranks, program=program)
    assert calm[0][0] == 10  # type: ignore[index]
    kills = [[1, 5], [0, 8]]
    options = ("--max-restarts", "9")
    results = run(
        tmp_path / "job",
        {**config, "kills": kills},
        ranks=ranks,
        spares=spares,
        program=program,
        options=options,
    )
    assert len(list((tmp_path / "job").glob("killed-*"))) == len(kills)
    assert results == calm
