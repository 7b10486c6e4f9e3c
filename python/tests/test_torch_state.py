"""State and its steps in a world of one: what is counted, said and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"

BEGIN = """
import torch, holdfast.torch as hf
from holdfast import UserError
def refused(text, call):
    try:
        call()
    except UserError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def program(text: str) -> str:
    """Run a program; return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + text],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_torch_steps_are_counted_over_epochs_and_calls() -> None:
    program("""
refused("hf.init()", lambda: hf.State(model, optimizer))
hf.init()
state = hf.State(model, optimizer)
refused("already", lambda: hf.State(model))
refused("State(..., more=...)", lambda: state.keep("more", []))
done, seen = [], []
state.on_commit(done.append)
def body(x):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
    seen.append((state.n, state.epoch, float(torch.rand(1))))
for x in state.steps([1.0, 2.0, 3.0], epochs=2): body(x)
for x in state.steps([1.0, 2.0, 3.0]): body(x)
assert done == list(range(1, 10)), done
assert [s[:2] for s in seen] == [(n, n // 3) for n in range(9)], seen
assert len({s[2] for s in seen}) == 9
assert state.n == 9 and not state.replaying
refused("can not tell", lambda: next(state.steps(iter([1]))))
""")


def test_torch_break_ends_after_its_step_and_an_exception_before_it() -> None:
    program("""
hf.init()
state = hf.State(model, optimizer)
def body(x):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
for x in state.steps([1.0, 2.0, 3.0, 4.0]):
    body(x)
    if x == 2.0: break
assert state.n == 2, state.n
try:
    for x in state.steps([1.0, 2.0]):
        body(x)
        raise KeyError
except KeyError:
    pass
assert state.n == 2, state.n
with state.step(): body(1.0)
assert state.n == 3, state.n
""")


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_torch_the_examples_diffs_apply(tmp_path: Path, name: str) -> None:
    out = tmp_path / "train.py"
    subprocess.run(
        [
            "patch",
            "-s",
            "-o",
            str(out),
            str(EXAMPLES / f"{name}.py"),
            str(EXAMPLES / f"{name}.diff"),
        ],
        check=True,
        capture_output=True,
    )
    text = out.read_text()
    compile(text, str(out), "exec")
    assert "hf.init()" in text
    assert "state.steps(loader" in text
    assert "gloo" not in text
