"""Memory errors take pages: training goes on with the same bits, in the same process if it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from lost_pages import TAKE_PAGE
from torch_job import needs_torch
from torch_small import small

pytestmark = needs_torch

# lose(what, when): takes a page away, once, if that is what config asks for.
LOSES = (
    TAKE_PAGE
    + """
first, last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
net = torch.nn.Sequential(first, torch.nn.BatchNorm1d(128), last)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = [torch.randn(8, 64, generator=torch.Generator().manual_seed(8 * rank + i)) for i in range(4)]
state = hf.State(model, optimizer)
def address(what):
    weight = net[0].weight
    if what == "parameter":
        return weight.data_ptr()
    if what == "momentum":
        return optimizer.state[weight]["momentum_buffer"].data_ptr()
    if what == "gradient":
        return weight.grad.data_ptr()
    image = state.versions.last
    return ctypes.addressof(ctypes.c_char.from_buffer(image)) + 8192
def lose(when):
    if rank != 1 or when != config["when"] or state.n < config["at"]:
        return
    try:
        open(f"{folder}/lost", "x").close()
    except FileExistsError:
        return
    at = -(-address(config["what"]) // 4096) * 4096
    take_page(at, config["touches"])
for x in state.steps(data * 10):
    lose("before")
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    lose("within")
    at(state.n)
    optimizer.step()
    lose("after")
leave(state.n)
"""
)
REPAIRED = "memory errors have taken 1 page that it trains with"


def calm(tmp_path: Path) -> object:
    results, said = small(tmp_path / "calm", LOSES, what="", when="", at=0, touches=False)
    assert results is not None and REPAIRED not in said, said
    return results


@pytest.mark.parametrize(
    ("what", "when", "touches"),
    [
        ("parameter", "before", False),
        ("parameter", "after", False),
        ("momentum", "within", False),
        ("momentum", "after", True),
        ("image", "before", True),
        ("image", "after", True),
    ],
)
def test_torch_a_lost_page_costs_at_most_the_step_and_no_process(
    tmp_path: Path, what: str, when: str, touches: bool
) -> None:
    results, said = small(tmp_path / "job", LOSES, what=what, when=when, at=7, touches=touches)
    assert results == calm(tmp_path), said
    assert REPAIRED in said, said
    assert (tmp_path / "job" / "lost").exists()


# The page is touched first when the other rank's death makes the step void, and all is restored.
def test_torch_zeros_that_were_restored_are_in_no_step(tmp_path: Path) -> None:
    results, said = small(
        tmp_path / "job", LOSES, [[0, 7]], what="image", when="within", at=7, touches=False
    )
    assert results == calm(tmp_path), said
    assert REPAIRED in said and "fetched from another rank" in said, said


# Memory that State does not know: the process ends by the signal, and another takes its place.
def test_torch_a_lost_page_of_a_gradient_costs_the_process(tmp_path: Path) -> None:
    results, said = small(
        tmp_path / "job", LOSES, [[1]], what="gradient", when="within", at=7, touches=False
    )
    assert results == calm(tmp_path), said
    assert REPAIRED not in said, said


# The program may change there what State keeps, and makes that change only once.
def test_torch_a_page_lost_between_two_steps_costs_the_process(tmp_path: Path) -> None:
    loop = LOSES[LOSES.index("for x in") : LOSES.index("leave(")]
    body = "".join(f"    {line}\n" for line in loop.splitlines()[1:])
    step = f"    with state.step():\n        x = data[state.n % 4]\n{body}    lose('between')\n"
    text = LOSES.replace(loop, f"while state.n < 40:\n{step}")
    config = {"what": "parameter", "when": "between", "touches": True}
    undisturbed, said = small(tmp_path / "calm", text, at=10**6, **config)
    assert undisturbed is not None, said
    results, said = small(tmp_path / "job", text, [[1]], at=1, **config)
    assert results == undisturbed, said
    assert "this process ends, and another one takes its place" in said


# A result is kept by a version that repeats the image of the last one.
def test_torch_a_lost_page_of_the_image_is_in_no_version_that_repeats_it(tmp_path: Path) -> None:
    loop = LOSES[LOSES.index("for x in") : LOSES.index("leave(")]
    body = "".join(f"        {line.strip()}\n" for line in loop.splitlines()[1:])
    step = f"    with state.step():\n        x = data[state.n % 4]\n{body}        at(state.n)\n"
    once = "    if state.n == 8:\n        lose('between')\n        state.once(os.getppid)\n"
    text = LOSES.replace(loop, f"while state.n < 40:\n{step}{once}")
    config = {"what": "image", "when": "between", "touches": True}
    undisturbed, said = small(tmp_path / "calm", text, at=10**6, **config)
    assert undisturbed is not None, said
    results, said = small(tmp_path / "job", text, [[1, 8]], at=8, **config)
    assert results == undisturbed, said
    assert (tmp_path / "job" / "lost").exists() and (tmp_path / "job" / "killed-1-(8,)").exists()
