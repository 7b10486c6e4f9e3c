"""Ends of MindSpore jobs: pytest as a launcher, errors that come again, mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, Job

pytestmark = NEEDS_MINDSPORE

TRAINS = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, train
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
print("STARTED", flush=True)
class Source:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return np.ones(2, np.float32){item}
class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2, 1)
    def construct(self, x):
        return self.dense(x){graph}
network = Network()
data = ms.dataset.GeneratorDataset(Source(), ["x"], shuffle=False).batch(1)
optimizer = nn.SGD(network.trainable_params(), 0.1)
ms.Model(network, None, optimizer).train(1, data, dataset_sink_mode=False)
print("DONE", get_rank(), flush=True)
"""


def trains(folder: Path, item: str = "", graph: str = "") -> None:
    (folder / "train.py").write_text(TRAINS.format(item=item, graph=graph))


def test_mindspore_pytest_that_finds_no_test_has_trained_once(tmp_path: Path) -> None:
    trains(tmp_path)
    run = Job(tmp_path, tmp_path, ["pytest", "-s", "train.py"])
    try:
        said = run.end()
    finally:
        run.stop()
    logs = run.logs()
    assert logs.count("DONE 0") == logs.count("DONE 1") == 1, logs
    assert logs.count("pytest has found no test in this program") == 1, logs
    assert "in good order" in said


@pytest.mark.parametrize(
    ("item", "graph", "error", "most"),
    [
        ("", " + ops.ones((3, 7), ms.float32) @ x", "", 2),
        (" if i < 0 else open('not-there')", "", "FileNotFoundError", 2),
        # The pipeline works ahead, so its error may come at this step or at an earlier one. Each
        # step that was made since the last error allows another attempt.
        (" if i < 5 else open('not-there')", "", "FileNotFoundError", 7),
    ],
)
def test_mindspore_an_error_of_the_compiler_or_the_data_is_tried_again_once(
    tmp_path: Path, item: str, graph: str, error: str, most: int
) -> None:
    trains(tmp_path, item, graph)
    run = Job(tmp_path, tmp_path, ["train.py"])
    try:
        said = run.end(code=1)
    finally:
        run.stop()
    logs = run.logs()
    for rank in (0, 1):
        log = (tmp_path / "logs" / f"worker_{rank}.log").read_text()
        assert 1 <= log.count("STARTED") <= most, log
    assert "with the same exception: " in said and "DONE" not in logs, said + logs
    assert error in logs


def test_mindspore_processes_of_mpirun_do_not_train_each_for_itself(tmp_path: Path) -> None:
    trains(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.mindspore", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and "STARTED" not in done.stdout
    assert "msrun --worker_num=2" in done.stderr, done.stderr
