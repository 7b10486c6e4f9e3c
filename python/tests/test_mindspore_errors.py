"""If a program asks for something that is not offered, one sentence says so."""
# With --ci: whole jobs for each loop of semi-automatic parallel.

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mindspore_job import HERE, LIMIT_S, NEEDS_MINDSPORE, Job

from mindio_ttp import framework_ttp as tft
from mindio_ttp._registry import registry

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    from mindspore import nn

    from holdfast import UserError
    from holdfast.mindspore import _image, _tft, _trainer
    from holdfast.mindspore._between import Rest

PROGRAM = """
import holdfast.mindspore._shims as shims
shims._tried.working = lambda framework: ["1.0"]
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from mindspore.communication import init
ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
init()
try:
    ops.ReduceScatter("avg")
except Exception as error:
    print("SAID", error)
try:
    nn.Dense(4, 2).set_param_ps()
except Exception as error:
    print("SAID", error)

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.status = nn.Dense(4, 2), ops.NPUAllocFloatStatus()

    def construct(self, x):
        return self.dense(x) + self.status()[0]

network = Network()
data = ms.dataset.NumpySlicesDataset((np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)))
optimizer = nn.SGD(network.trainable_params())
ms.Model(network, nn.MSELoss(), optimizer).train(1, data.batch(4))
"""


# Many groups of the same ranks, which is allowed; then a type that can not be exchanged.
TYPES = """
import mindspore as ms
from mindspore import ops
from mindspore.communication import create_group, init
init()
for i in range(70):
    create_group(f"g{i}", [0])
print("SUM", ops.AllReduce(group="g69")(ms.Tensor([1.0])), flush=True)
ops.Broadcast(0)((ms.Tensor([1], ms.uint32),))[0].asnumpy()
print("BEYOND", flush=True)
"""

# A loop of the program's own that uses features of Model.train alone.
OWN_LOOP = """
import os
import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
network = nn.Dense(2, 1)
reducer = nn.DistributedGradReducer(network.trainable_params())
optimizer = nn.SGD(network.trainable_params(), 0.1)
step = ms.value_and_grad(lambda x: network(x).sum(), None, network.trainable_params())
for i in range(1000):
    optimizer(reducer(step(ms.Tensor(np.ones((2, 2), np.float32)))[1]))
    if i == 5 and get_rank() == 1:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    ("program", "ranks", "switch", "said"),
    [
        (TYPES, 1, "", "collectives have no type uint32; cast it"),
        (OWN_LOOP, 2, "{TTP:1}", "was lost in a loop of the program's own, of which nothing is"),
    ],
)
def test_mindspore_what_can_not_go_on_is_said(
    tmp_path: Path, program: str, ranks: int, switch: str, said: str
) -> None:
    (tmp_path / "program.py").write_text(program)
    options, variables = ("--max_restarts=1",), {"MS_ENABLE_TFT": switch} if switch else {}
    run = Job(tmp_path, tmp_path, ["program.py"], ranks, options=options, variables=variables)
    try:
        run.end(code=None)
    finally:
        run.stop()
    assert run.process.returncode != 0
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
    assert said in logs, logs
    assert (program is OWN_LOOP or "SUM [1.]" in logs) and "BEYOND" not in logs


# One rank ends in the middle of its training.
EXITS = """
import os, sys
import mindspore as ms
import numpy as np
from mindspore import nn, train
from mindspore.communication import get_rank, init
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
class Leaves(train.Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 3 and get_rank() == 1:
            if not os.path.exists("left"):
                open("left", "x").close()
                exit(3)
network = nn.Dense(2, 1)
ones = np.ones((8, 2), np.float32)
data = ms.dataset.NumpySlicesDataset((ones, ones[:, :1]), ["x", "y"], shuffle=False).batch(1)
model = ms.Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
model.train(1, data, callbacks=[Leaves()])
print("DONE", get_rank(), flush=True)
"""


@pytest.mark.kill
def test_mindspore_who_exits_with_an_error_is_replaced_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(EXITS)
    run = Job(tmp_path, tmp_path, ["program.py"])
    try:
        run.end()
    finally:
        run.stop()
    logs = run.logs()
    assert (tmp_path / "left").exists()
    assert logs.count("DONE 0") == logs.count("DONE 1") == 1, logs
    assert "PeerError" not in logs and logs.count("Error") == 0, logs


@pytest.mark.kill
def test_mindspore_what_a_cpu_has_not_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run = Job(tmp_path, tmp_path, ["program.py"], ranks=1, options=("--max_restarts=0",))
    try:
        run.end(code=None)
    finally:
        run.stop()
    assert run.process.returncode != 0
    text = (tmp_path / "logs" / "worker_0.log").read_text()
    assert f"holdfast: mindspore {ms.__version__} was not tried; those that were: 1.0. " in text
    lines = text.splitlines()
    assert 'holdfast: device_target="Ascend" was asked for; this runs on the CPU' in lines
    assert "SAID ReduceScatter has no operation 'avg'; it has sum, prod, max, min" in lines
    assert "SAID Must complete following two steps before calling set_param_ps: " in lines
    assert lines[-1].startswith("holdfast._errors.UserError: the network uses the operator ")
    assert "NPUAllocFloatStatus" in lines[-1]
    assert not any("C++ Call Stack" in line for line in lines)  # MindSpore prints 40 such lines.


def test_mindspore_semi_automatic_parallel_trains_as_data_parallel(tmp_path: Path) -> None:
    program = [str(HERE / "mindspore_semi.py")]
    run = Job(tmp_path, tmp_path, program, options=("--max_restarts=0",))
    try:
        run.end(limit_s=3 * LIMIT_S)  # Some twenty loops, each with graphs of its own.
    finally:
        run.stop()
    same = ("by_jit", "by_auto_parallel", "by_hand_in_pynative", "by_grad_operation")
    same = (*same, "by_each_step", "by_own_cell_in_pynative", "by_micro_batches")
    same = (*same, "by_own_cell_with_reducer", "by_late_in_graph", "by_late_in_pynative")
    same = (*same, "by_whole_batches", "by_whole_batches_in_pynative")
    same = (*same, "by_own_cell_without", "by_forward_value_and_grad", "by_both_within")
    same = (*same, "by_forward_value_and_grad_in_pynative", "by_grad_operation_within")
    same = (*same, "by_value_and_grad_in_jit_in_pynative")
    same = (*same, "by_one_step_cell_in_pynative", "by_one_step_cell_data_parallel")
    other = ("by_itself", "by_each_step_alone")
    sentence = (
        "an update was made of gradients that no rank has exchanged, so the ranks drift apart"
    )
    for rank in range(2):
        text = (tmp_path / "logs" / f"worker_{rank}.log").read_text()
        lines = text.splitlines()
        said = sorted(line for line in lines if line.startswith(("SAME", "OTHER")))
        assert said == sorted([f"SAME {way}" for way in same] + [f"OTHER {way}" for way in other])
        assert lines.count("WHOLE True full_batch") == lines.count("WHOLE False") == 2
        assert "MEAN False" in lines  # The reset takes effect.
        assert {"MADE semi_auto_parallel 1", "MADE stand_alone 1"} <= set(lines)
        # A cell with a reducer exchanges each of its four gradients once, as in data parallel.
        assert {"EXCHANGES semi_auto_parallel 4", "EXCHANGES data_parallel 4"} <= set(lines)
        # An exchange may still be under way at one update, but not at the next.
        steps = [line for line in lines if line.startswith("STEP")]
        assert steps == ["STEP False"] * 2 + ["STEP True"] * 2
        assert sum(line.startswith("ENDED ") and sentence in line for line in lines) == 2
        assert "holdfast: pipeline_stages has no effect: every rank computes all stages" in text
        assert "REFUSED dataset_strategy=((1, 4), (1,)) gives each rank a slice of every" in text


def test_mindspore_a_script_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    run = Job(tmp_path, tmp_path, ["nothere.py"])
    try:
        run.end(code=2)
    finally:
        run.stop()
    assert not (tmp_path / "logs").exists()  # Nothing was started.


def test_mindspore_a_network_that_has_changed_is_named_by_its_parameter() -> None:
    first = _image.Image(list(nn.Dense(4, 2).get_parameters()), {})
    view = memoryview(bytearray(first.bytes))
    first.write(view, {})
    for other, name in ((nn.Dense(4, 3), "weight"), (nn.Dense(4, 2, has_bias=False), "bias")):
        with pytest.raises(UserError, match=rf"has changed between restarts: parameter '{name}'"):
            _image.Image(list(other.get_parameters()), {}).read(view, lambda _: None)


def test_mindspore_dropout_is_seen_where_it_draws() -> None:
    assert _trainer.draws(nn.SequentialCell(nn.Dense(2, 2), nn.SequentialCell(nn.Dropout(p=0.5))))
    assert _trainer.draws(nn.SequentialCell(nn.Dropout2d(p=0.5)))
    assert not _trainer.draws(nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.0)))


def test_mindspore_mindio_says_which_step_it_goes_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = SimpleNamespace()
    trainer = _trainer.Trainer(engine)
    trainer.call = 1
    monkeypatch.setattr(registry, "actor", _tft.Actor(trainer))
    assert not tft.tft_can_do_uce_repair(1)  # There is no step to go back to.
    state: Any = SimpleNamespace(objects={"call": 0, "step": 9}, n=0, under_way=False)
    trainer.state = state
    assert tft.tft_get_repair_step() == 0 and not tft.tft_can_do_uce_repair(1)
    trainer.rest = Rest(1, 0, 0, {}, [], (0, 0, 0))  # Where its first step began.
    assert tft.tft_get_repair_step() == 0 and tft.tft_can_do_uce_repair(1)
    trainer.state = SimpleNamespace(objects={"call": 1, "step": 7}, n=7, under_way=False)
    assert tft.tft_get_repair_step() == 7 and tft.tft_can_do_uce_repair(1)
    trainer.state.under_way = True  # Other ranks may have this rank's data of the step.
    assert not tft.tft_can_do_uce_repair(1)
