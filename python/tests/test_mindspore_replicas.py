"""Parameters that all ranks hold alike are compared: a difference is repaired, or ends the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, Job, digests

pytestmark = NEEDS_MINDSPORE

BEGIN = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Model, nn, ops
from mindspore import dataset as ds
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train.callback import Callback

graph, at = sys.argv[1] == "graph", int(sys.argv[2])
ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE, device_target="CPU")
init()
ms.set_seed(7)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
rank = get_rank()
x = np.random.RandomState(3).randn(96, 8).astype(np.float32)
data = ds.NumpySlicesDataset(
    (x, x.sum(1, keepdims=True)), ["x", "y"], num_shards=get_group_size(), shard_id=rank
).batch(4)
net = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
"""
LOOP = """
import holdfast.mindspore as hf

loss_of = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)
reducer = nn.DistributedGradReducer(optimizer.parameters)
state = hf.State(net, optimizer)
for epoch in state.epochs(4):
    for x, y in state.steps(data):
        _, grads = gradients(x, y)
        optimizer(reducer(grads))
        if rank == 2 and state.n == at:  # Between the sum and the step's end.
            net[3].weight.asnumpy().view(np.uint32)[0, 3] ^= 1 << 9
"""
MODEL = """
class Rate(Callback):
    def on_train_epoch_end(self, run_context):
        if rank == 1 and run_context.original_args().cur_epoch_num == at:
            ops.assign(optimizer.learning_rate, ms.Tensor(0.02, ms.float32))


model = Model(net, nn.MSELoss(), optimizer)
model.train(4, data, [Rate()], dataset_sink_mode=False)
"""
END = """
held = [*net.trainable_params(), *optimizer.moments]
ms.save_checkpoint([{"name": p.name, "data": p} for p in held], f"final-{rank}.ckpt")
"""


def run(folder: Path, text: str, words: list[str], ranks: int, **variables: str) -> tuple[int, str]:
    """Run a program to its end; return its code and its output."""
    folder.mkdir()
    (folder / "program.py").write_text(BEGIN + text + END)
    made = Job(folder, folder, ["program.py", *words], ranks=ranks, variables=variables)
    try:
        said = made.end(code=None)
    finally:
        made.stop()
    return made.process.returncode, said + made.logs()


def test_mindspore_a_rank_whose_memory_has_changed_is_given_the_values_of_the_others(
    tmp_path: Path,
) -> None:
    code, said = run(tmp_path / "calm", LOOP, ["pynative", "-1"], 3)
    assert code == 0 and "other values" not in said, said
    code, said = run(tmp_path / "job", LOOP, ["pynative", "10"], 3, HOLDFAST_DIGEST_EVERY="1")
    assert code == 0, said
    assert "rank 2 holds other values of `3.weight` than rank 0 after step 11. " in said
    assert "It has been given the values that most ranks hold" in said
    assert len(digests(tmp_path / "calm")) == 3
    assert digests(tmp_path / "calm") == digests(tmp_path / "job")
    assert len(set(digests(tmp_path / "job").values())) == 1


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_mindspore_a_rank_that_trains_with_another_rate_is_named(tmp_path: Path, mode: str) -> None:
    code, said = run(tmp_path / "job", MODEL, [mode, "2"], 2)
    assert code != 0 and not digests(tmp_path / "job"), said
    assert "rank 1 holds other values of `" in said and "0.weight` than rank 0 after step" in said
    assert "a learning rate read at another time" in said


def test_mindspore_drift_may_be_warned_of_only(tmp_path: Path) -> None:
    code, said = run(tmp_path / "job", MODEL, ["graph", "2"], 2, HOLDFAST_DRIFT="warn")
    assert code == 0 and len(set(digests(tmp_path / "job").values())) == 2, said
    assert "The job goes on (HOLDFAST_DRIFT=warn)" in said
