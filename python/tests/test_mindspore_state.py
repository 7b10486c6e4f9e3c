"""A loop of the program's own that State keeps loses processes and ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests, make_data

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE]


def run(folder: Path, data: Path, words: list[str], spares: int = 0) -> tuple[dict[str, str], str]:
    """Run the program to its end; return its files and its output."""
    made = Job(folder, data, [str(HERE / "mindspore_state.py"), *words], spares=spares)
    try:
        made.end()
    finally:
        made.stop()
    kills = [word for word in words if "," in word]
    assert len(list(folder.glob("killed-*"))) == len(kills)
    return digests(folder), made.logs()


@pytest.mark.parametrize(
    ("words", "kills", "spares"),
    [
        # Kills before and after a sum, after an update, between epochs, in state.once().
        (["pynative"], ["1,sum5", "0,end12", "1,between1", "0,once2", "1,once3"], 0),
        (["graph"], ["0,begin0", "1,sum5", "0,between0", "1,end29"], 1),
        (["pynative", "augment", "stop"], ["1,end3", "0,begin17", "1,after1"], 1),
        (["pynative", "own"], ["0,once0", "1,sum4", "0,end9", "1,begin14"], 0),
    ],
)
def test_mindspore_a_loop_of_its_own_goes_on_with_the_same_bits(
    tmp_path: Path, words: list[str], kills: list[str], spares: int
) -> None:
    data = make_data(tmp_path / "data", 640)
    calm, _ = run(tmp_path / "calm", data, words)
    killed, logs = run(tmp_path / "kills", data, [*words, *kills], spares)
    assert set(calm) == {"final-0.ckpt", "final-1.ckpt"}
    assert calm == killed
    steps = 15 if "own" in words else 20 if "stop" in words else 30
    assert logs.count(f"STEPS {steps}") == 2
    assert "was void, it is made again" in logs and "Error" not in logs


ALONE = """
import numpy as np
import mindspore as ms
from mindspore import nn
import holdfast.mindspore as hf

network = nn.Dense(2, 1)
optimizer = nn.SGD(network.trainable_params(), 0.1)
state = hf.State(network, optimizer, held=ms.Parameter(ms.Tensor([1.0]), "held"))


def said(what):
    try:
        what()
    except Exception as error:
        print("SAID", type(error).__name__, error, flush=True)


said(lambda: state.vars(file=print))
said(lambda: state.vars(large=np.zeros(1 << 20)))
run = state.vars(n=0, rows=[])
said(lambda: state.vars(n=1))
said(lambda: setattr(run, "m", 1))
said(lambda: hf.State(network, optimizer))
said(lambda: state.once(lambda: print))
before = network.weight.asnumpy().copy()
for x in state.steps([1, 2, 3]):
    run.n += 1
    run.rows.append(x)
    network.weight.set_data(ms.Tensor(np.full((1, 2), float(x)), ms.float32))
    if x == 3:
        break
print("LEFT", state.n, run.n, run.rows, network.weight.asnumpy().tolist(), flush=True)
said(lambda: list(state.steps([1])))
run.n = print
"""


def run_alone(folder: Path, program: str) -> str:
    """Run a program to its end; return its output."""
    (folder / "alone.py").write_text(program)
    made = Job(folder, folder, ["alone.py"], ranks=1, options=("--max_restarts=0",))
    try:
        made.end(code=None)
    finally:
        made.stop()
    return (folder / "logs" / "worker_0.log").read_text()


def test_mindspore_what_state_can_not_keep_is_said_at_its_line(tmp_path: Path) -> None:
    text = run_alone(tmp_path, ALONE)
    assert "`break` leaves its step undone" in text, text
    said = [line for line in text.splitlines() if line.startswith("SAID UserError")]
    wanted: list[Any] = ["`file` can not be kept", "`large`", "given `n` before", "given no `m`"]
    wanted += ["a second training begins in this job", "can not be kept", "state.steps() is called"]
    assert len(said) == len(wanted), text
    for line, words in zip(said, wanted):
        assert words in line, text
    assert "LEFT 2 2 [1, 2] [[2.0, 2.0]]" in text, text  # The third step is undone.
    assert "step 3 was left before its end, so it is undone" in text
    assert text.splitlines()[-1].startswith("holdfast._errors.UserError: `n` can not be kept")


def test_mindspore_strict_makes_advice_an_error(tmp_path: Path) -> None:
    text = run_alone(tmp_path, ALONE.replace("optimizer, held", "optimizer, strict=True, held"))
    assert "UserError: State(strict=True):" in text and "`break` leaves its step" in text, text
    assert "LEFT" not in text
