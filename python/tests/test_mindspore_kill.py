"""Real MindSpore loses processes and ends with the bits of a run that lost none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindspore_job import (
    HERE,
    NEEDS_MINDSPORE,
    NIGHTLY,
    Job,
    digests,
    draw_kills,
    job,
    make_data,
    until,
)

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE]

Files = dict[str, str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "train")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[Any], Files]:
    """Return the checkpoints of a configuration without kills, made once."""
    made: dict[str, Files] = {}

    def files(config: dict[str, Any]) -> Files:
        key = json.dumps(config, sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("calm") / "job"
            with job(folder, data, config) as run:
                run.end()
            made[key] = digests(folder)
            assert {"final-0.ckpt", "final-1.ckpt"} < set(made[key])
        return made[key]

    return files


GRAPH: dict[str, Any] = {"graph": True}
AUGMENTED: dict[str, Any] = {"augment": True, "optimizer": "Adam", "schedule": True}
PYNATIVE: dict[str, Any] = {"graph": False, "epochs": 1}
BROADCAST: dict[str, Any] = {"broadcast": True}  # A successor compiles this alone.


@pytest.mark.parametrize(
    ("config", "spares", "first", "last"),
    [
        pytest.param(GRAPH, 1, 2, 45, id="graph-spare"),
        pytest.param(AUGMENTED, 0, 2, 45, id="augmented", marks=NIGHTLY),
        pytest.param(BROADCAST, 0, 2, 45, id="parameter-broadcast"),
        pytest.param(PYNATIVE, 1, 2, 22, id="pynative-spare"),
    ],
)
def test_mindspore_two_kills_leave_no_trace(
    tmp_path: Path,
    data: Path,
    calm: Any,
    config: dict[str, Any],
    spares: int,
    first: int,
    last: int,
) -> None:
    kills = draw_kills(spares, 2, first, last, count=2)
    options = ("--rehearse",) if spares and config is GRAPH else ()
    given = {"spares": None if options else spares, "options": options}
    with job(tmp_path / "job", data, {**config, "kills": kills}, **given) as run:
        run.end()
        losses: dict[int, set[str]] = {}
        for _, step, loss in run.steps():
            losses.setdefault(step, set()).add(loss)
    assert len(list((tmp_path / "job").glob("killed-*"))) == 2
    assert digests(tmp_path / "job") == calm(config)
    # A successor may report a step again, with the same loss. No step is missing.
    assert sorted(losses) == list(range(1, max(losses) + 1))
    assert all(len(found) <= 2 for found in losses.values())


def test_mindspore_a_kill_from_outside_at_any_instant(
    tmp_path: Path, data: Path, calm: Any
) -> None:
    with job(tmp_path / "job", data, {**GRAPH, "pause": 0.02}, spares=1) as run:
        assert until(lambda: run.at(0)[1] >= 10)
        run.kill_at(0, 10, delay_s=0.013)
        run.end()
    assert digests(tmp_path / "job") == calm(GRAPH)


@NIGHTLY
def test_mindspore_a_loop_of_the_program_s_own_starts_again_from_the_top(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data" / "train", 320)
    finals = []
    for kind in ("calm", "kill"):
        program = [str(HERE / "mindspore_loop.py"), kind]
        run = Job(tmp_path / kind, data, program)
        try:
            run.end()
        finally:
            run.stop()
        assert (tmp_path / kind / "killed").exists() is (kind == "kill")
        finals.append(digests(tmp_path / kind))
    assert finals[0] == finals[1]
    assert finals[0]["final-0.ckpt"] == finals[0]["final-1.ckpt"]


SUMS = """
import os
import signal
import numpy as np
import time
import mindspore as ms
from mindspore import nn, ops
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.PYNATIVE_MODE)
init()
rank = get_rank()
# A spare rehearses what has Model(...).train(...) in it; a training in a loop is where it stops.
total = nn.DistributedGradReducer(nn.Dense(1, 1).trainable_params(), mean=False)
one = 1
@ms.jit
def sum_and_one(value):
    return total((value,))[0] + one
for step in range(5):
    value = sum_and_one(ms.Tensor(np.float32([step + rank]))).asnumpy()
    print("SUM", step, float(value[0]), flush=True)
    if (step, rank) == (2, 1) and not os.path.exists("killed"):
        logs = [f"logs/spare_{i}.log" for i in range(2)]
        while not all("waits for a place" in open(log).read() for log in logs):
            time.sleep(0.01)
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
large, late = ms.Tensor(np.ones(1 << 20, np.float32)), ops.AllReduce()
for step in range(20):
    late(large)  # Nobody waits for these: they still run when the program ends.
"""


def test_mindspore_sums_by_hand_are_those_of_all_ranks_after_a_kill_too(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SUMS)
    run = Job(
        tmp_path / "job",
        tmp_path,
        [str(tmp_path / "sums.py")],
        spares=None,
        options=("--rehearse",),
    )
    try:
        run.end()
    finally:
        run.stop()
    assert (tmp_path / "job" / "killed").exists()
    found = [line for line in run.logs().splitlines() if line.startswith("SUM")]
    assert set(found) == {f"SUM {step} {2.0 * step + 2}" for step in range(5)}, run.logs()
    assert found.count("SUM 4 10.0") == 2
    assert "NameError" not in run.logs()  # The spare could compile.


ACCUMULATED = """
import numpy as np
import mindspore as ms
from mindspore import nn
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.PYNATIVE_MODE)
init()
network = nn.Dense(2, 2)
held = ms.ParameterTuple(network.trainable_params()).clone("held", "zeros")
for parameter in held:
    parameter.set_data(ms.Tensor(np.full(parameter.shape, 1 + get_rank(), np.float32)))
reducer = nn.DistributedGradReducer(network.trainable_params(), mean=True)
for times in (1, 2):
    print("MEANS", times, *(float(mean.asnumpy().max()) for mean in reducer(held)), flush=True)
    for parameter in held:
        parameter.set_data(2 * parameter)
"""


def test_mindspore_gradients_that_parameters_have_accumulated_are_exchanged(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(ACCUMULATED)
    run = Job(tmp_path / "job", tmp_path, [str(tmp_path / "held.py")])
    try:
        run.end()
    finally:
        run.stop()
    found = [line for line in run.logs().splitlines() if line.startswith("MEANS")]
    assert sorted(found) == ["MEANS 1 1.5 1.5"] * 2 + ["MEANS 2 3.0 3.0"] * 2, run.logs()
