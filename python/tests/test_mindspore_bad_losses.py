"""A loss that is NaN: its step does not count, and is made again, or its batch is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, digests
from test_mindspore_replicas import run

pytestmark = NEEDS_MINDSPORE

# In step `at` + 1 rank 1's loss is NaN: "once", "always"; "without": no rank does anything in it.
CHECKED = """
import os
import holdfast.mindspore as hf

how, then = sys.argv[3:]
loss_of = nn.MSELoss()


def forward(x, y):
    return loss_of(net(x), y)


gradients = ms.value_and_grad(forward, None, optimizer.parameters)
reducer = nn.DistributedGradReducer(optimizer.parameters)
state = hf.State(net, optimizer)


def is_bad():
    if rank != 1 or state.n != at or how == "without" or (how == "once" and os.path.exists("bad")):
        return False
    open("bad", "w").close()
    return True


for epoch in state.epochs(4):
    for x, y in state.steps(data):
        if how == "without" and state.n == at:
            continue
        loss, grads = gradients(x, y)
        state.check(float("nan") if is_bad() else loss, then=then)
        optimizer(reducer(grads))
"""


def test_mindspore_a_loss_that_is_bad_once_costs_no_bit(tmp_path: Path) -> None:
    code, said = run(tmp_path / "calm", CHECKED, ["pynative", "-1", "once", "stop"], 2)
    assert code == 0, said
    code, said = run(tmp_path / "job", CHECKED, ["pynative", "7", "once", "stop"], 2)
    assert code == 0 and "the loss of step 8 is nan on rank 1: it is made again" in said, said
    assert digests(tmp_path / "job") == digests(tmp_path / "calm")


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_mindspore_a_batch_whose_loss_is_bad_again_is_left_out(tmp_path: Path, mode: str) -> None:
    code, said = run(tmp_path / "without", CHECKED, [mode, "7", "without", "skip"], 2)
    assert code == 0, said
    code, said = run(tmp_path / "job", CHECKED, [mode, "7", "always", "skip"], 2)
    assert code == 0 and "again: its batch is left out" in said, said
    assert digests(tmp_path / "job") == digests(tmp_path / "without")


def test_mindspore_a_loss_that_is_bad_again_ends_the_job_by_name(tmp_path: Path) -> None:
    code, said = run(tmp_path / "job", CHECKED, ["pynative", "7", "always", "stop"], 2)
    assert code != 0 and not digests(tmp_path / "job"), said
    assert "the loss of step 8 is nan on rank 1, and a loss was bad before" in said, said


# Model.train. "data": a batch of rank 1 has a NaN, once in each epoch; "undone": the same, and each
# rank itself takes back what such a step has changed; "once": the loss of step 8 is NaN, once.
TRAINED = """
import os
import holdfast.mindspore as hf
from mindspore.train.callback import LossMonitor

how, then = sys.argv[3:]
if how in ("data", "undone") and rank == 1:
    x[41, 0] = np.nan  # Of its sixth batch.
    data = ds.NumpySlicesDataset(
        (x, x.sum(1, keepdims=True)), ["x", "y"], num_shards=2, shard_id=1, shuffle=False
    ).batch(4)
step = 0


class Loss(nn.MSELoss):
    def construct(self, *given):
        loss = super().construct(*given)
        if how == "once" and rank == 1 and step == 8 and not os.path.exists("bad"):
            open("bad", "w").close()
            loss = loss * float("nan")
        return loss


class Undo(Callback):
    def all(self):
        return [*net.get_parameters(), *optimizer.get_parameters()]

    def on_train_step_begin(self, run_context):
        global step
        step = run_context.original_args().cur_step_num
        self.before = [p.asnumpy().copy() for p in self.all()]

    def on_train_step_end(self, run_context):
        if how == "undone" and not all(np.isfinite(p.asnumpy()).all() for p in self.all()):
            for p, value in zip(self.all(), self.before):
                p.set_data(ms.Tensor(value))


more = [LossMonitor(), hf.CheckLoss(then=then)] if then else []
model = Model(net, Loss() if how == "once" else nn.MSELoss(), optimizer)
model.train(4, data, [Undo(), *more], dataset_sink_mode=False)
held = [*net.trainable_params(), *optimizer.moments]
assert all(np.isfinite(p.asnumpy()).all() for p in held)
"""


def test_mindspore_model_train_makes_a_step_again_whose_loss_is_bad(tmp_path: Path) -> None:
    code, said = run(tmp_path / "calm", TRAINED, ["pynative", "-1", "", ""], 2)
    assert code == 0, said
    code, said = run(tmp_path / "job", TRAINED, ["pynative", "-1", "once", "stop"], 2)
    assert code == 0 and "the loss of step 8 is nan on rank 1: it is made again" in said, said
    assert digests(tmp_path / "job") == digests(tmp_path / "calm")


def test_mindspore_model_train_leaves_a_batch_out_whose_loss_is_bad_again(tmp_path: Path) -> None:
    code, said = run(tmp_path / "undone", TRAINED, ["graph", "-1", "undone", ""], 2)
    assert code == 0, said
    code, said = run(tmp_path / "job", TRAINED, ["graph", "-1", "data", "skip"], 2)
    assert code == 0 and said.count("again: its batch is left out") == 4, said
    assert digests(tmp_path / "job") == digests(tmp_path / "undone")


def test_mindspore_model_train_ends_by_a_loss_that_is_bad_again(tmp_path: Path) -> None:
    code, said = run(tmp_path / "job", TRAINED, ["graph", "-1", "data", "stop"], 2)
    assert code != 0 and not digests(tmp_path / "job"), said
    assert "the loss of step 6 is nan on rank 1, and a loss was bad before" in said, said
