"""Remarks on a training loop, from its source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast._advice import advise

HEAD = "state = hf.State(model, optimizer, meter=meter)\nrun = state.vars(best=0.0)\n"


def said(folder: Path, text: str) -> list[str]:
    """Return remarks on the loop with `state.step` in its head or its `with`."""
    path = folder / "train.py"
    path.write_text(HEAD + text)
    lines = path.read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "state.step" in text)
    return advise(str(path), line)


LOOP = "for x in state.steps(loader):\n    "


@pytest.mark.parametrize(
    ("text", "at", "remark"),
    [
        (f"{LOOP}total += x", 4, "`total` goes on from step to step, and is not in State"),
        (f"{LOOP}counts[x] += 1", 4, "`counts[x]` goes on"),
        (f"{LOOP}self.seen += 1", 4, "`self.seen` goes on"),
        (f"{LOOP}losses.append(x)", 4, "`losses` goes on"),
        (f"{LOOP}self.meters['a'].update(x)", 4, "`self.meters['a']` goes on"),
        (f"{LOOP}top = max(top, x)", 4, "`top` goes on"),
        (f"{LOOP}h, c = cell(x, h)", 4, "`h` goes on"),
        (f"{LOOP}if f(x) < best: best = f(x)", 4, "`best` goes on"),
        (f"{LOOP}y = next(it)", 4, "`it` goes on"),
        (
            "for epoch in state.epochs(2):\n    rate = next(rates)\n"
            "    for x in state.steps(loader): f(x)",
            4,
            "`rates` goes on",
        ),
        (
            "for epoch in state.epochs(2):\n    for x in state.steps(loader): f(x)\n"
            "    if f(x) > top: top = f(x)",
            5,
            "`top` goes on",
        ),
        (
            "first = state.once(f)\nwhile state.n < 9:\n    with state.step():\n        f(x)",
            3,
            "put `if state.n == 0:` before this state.once(...)",
        ),
        (f"{LOOP}if x: break", 4, "`break` leaves its step undone; state.stop() ends after it"),
        ("for i, x in enumerate(state.steps(loader)): f(x)", 3, "begins to count anew here"),
        ("for x in islice(state.steps(loader), 5): f(x)", 3, "begins to count anew here"),
        ("for x in it.islice(state.steps(loader), 5): f(x)", 3, "begins to count anew here"),
        (f"{LOOP}for m in meters: m.update(x)", 4, "`m` goes on"),
        (f"{LOOP}f(x)\n    open('log', 'w').write('x')", 5, "empties this file; open it with 'a'"),
        (
            "for epoch in state.epochs(2):\n    for x in state.steps(loader): f(x)\n"
            "    torch.save(model, 'm')",
            5,
            "torch.save(...) may run again after a fault",
        ),
        (
            "def count():\n    global n\n    n += 1\n"
            "def train():\n    for x in state.steps(loader):\n        count()",
            4,
            "`global n` goes on",
        ),
        (
            "def train():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n"
            "    for x in state.steps(loader):\n        count()",
            6,
            "`nonlocal n` goes on",
        ),
        (
            "while state.n < 9:\n    with state.step():\n        total += 1",
            5,
            "`total` goes on",
        ),
    ],
)
def test_core_a_remark_names_line_and_cure(tmp_path: Path, text: str, at: int, remark: str) -> None:
    remarks = said(tmp_path, text)
    assert len(remarks) == 1 and remarks[0].endswith(" takes it back)"), remarks
    lines = text.splitlines()
    lines[at - 3] += "  # holdfast: ok"
    (tmp_path / "taken").mkdir()
    assert said(tmp_path / "taken", "\n".join(lines)) == []
    assert remarks[0].startswith(f"train.py:{at}: ") and remark in remarks[0], remarks


@pytest.mark.parametrize(
    "text",
    [
        f"{LOOP}run.best = max(run.best, x)\n    run.losses.append(x)\n    meter.update(x)",
        f"{LOOP}loss = f(x)\n    loss = loss / 2\n    loss += g(x)\n    parts = []\n"
        "    parts.append(loss)\n    x = x * 2",
        f"{LOOP}for y in x:\n        if y: break\n    optimizer.zero_grad()\n    open('log', 'a')",
        "for epoch in state.epochs(3):\n    for x in state.steps(loader): f(x)\n"
        "    run.best += 1\n    state.once(evaluate, model)\n    print(epoch)",
        "def other():\n    global n\nfor x in state.steps(loader): f(x)",
        "with open('log', 'w') as log: pass\nfor x in state.steps(loader): f(x)",
        "steps = state.steps(loader)\n",
        f"losses = run.losses\n{LOOP}losses.append(x)",
        "class T:\n def f(self):\n  self.own = state.vars(n=0)\n def g(self):\n"
        "  opt, own = self.opt, self.own\n  for x in state.steps(loader):\n   own.n += 1",
        "if state.n == 0:\n    first = state.once(f)\nwhile state.n < 9:\n"
        "    with state.step(): f(x)",
        f"{LOOP}for y in [[], []]: y.append(x)\n    with f(x) as y: y.update(x)",
        f"import numpy as np\n{LOOP}y = np.append(x, 1)",
        f"{LOOP}for g in optimizer.param_groups: g['lr'] *= 0.9",
        "for x in state.steps(list(islice(enumerate(loader), 5))): f(x)",
        f"bar = tqdm(total=9, file=open(os.devnull, 'w'))\n{LOOP}bar.update(1)",
        f"{LOOP}if rank == 0: stats['loss'] = f(x)",
        "for epoch in state.epochs(3):\n    total = 0.0\n    order = f(epoch)\n"
        "    for x in state.steps(order): total = f(x)\n    print(total)",
    ],
    ids=[
        "kept",
        "set anew",
        "in a loop",
        "between epochs",
        "not called",
        "before",
        "no loop",
        "the same list",
        "two names at once",
        *("guarded", "of the step", "a module's", "a group", "fed", "a bar", "of a rank"),
        "anew in each epoch",
    ],
)
def test_core_nothing_is_said_of_what_keeps_the_rule(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == []


def test_core_no_source_is_no_error(tmp_path: Path) -> None:
    assert advise("<string>", 1) == []
    (tmp_path / "odd.py").write_text("for x in state.steps(:\n")
    assert advise(str(tmp_path / "odd.py"), 1) == []


RIGHT = """
for epoch in state.epochs(3):
    dataset.epoch = epoch
    bar = tqdm(state.steps(loader))
    for batch in bar:
        batch = {k: v.clone() for k, v in batch.items()}
        v = sorted([v for v in batch.values()], key=lambda k: k[0])
        k = sum(k for k in v)
        optimizer.step()
        bar.update(k)
"""


def test_core_a_right_loop_is_not_accused(tmp_path: Path) -> None:
    def found(name: str, was: str = "", now: str = "") -> str:
        file = tmp_path / name
        file.write_text(RIGHT.replace(was, now) if was else RIGHT)
        return "".join(advise(str(file), 4))

    assert found("right.py") == ""
    once = found("once.py", "dataset.epoch = epoch", "if epoch == 2: dataset.mosaic = False")
    assert "`dataset.mosaic` is set in one turn of the loop" in once
    assert "`seen` goes on from step to step" in found("seen.py", "bar.update(k)", "seen.update(k)")
