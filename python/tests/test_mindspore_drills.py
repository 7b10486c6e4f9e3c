"""Faults that `holdfast inject` orders come to programs of MindSpore, and cost no bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, digests
from test_mindspore_replicas import run

pytestmark = NEEDS_MINDSPORE

DRILLED = """
import os, subprocess


class Order(Callback):
    def on_train_step_end(self, run_context):
        is_due = rank == 0 and run_context.original_args().cur_step_num == at
        if is_due and not os.path.exists("ordered"):
            open("ordered", "x").close()
            words = ["inject", *sys.argv[3:], "--job", os.environ["HOLDFAST_JOB"], "--rank", "1"]
            subprocess.run([sys.executable, "-m", "holdfast", *words], check=True)


model = Model(net, nn.MSELoss(), optimizer)
model.train(4, data, [Order()], dataset_sink_mode=False)
"""


@pytest.mark.parametrize(
    ("drill", "words"),
    [
        ("kill --phase commit", "was killed by signal 9"),
        ("stop --phase compute", "was stopped by a signal and ended by its agent"),
        ("flip", "It has been given the values that most ranks hold"),
    ],
)
def test_mindspore_a_fault_on_order_costs_no_bit(tmp_path: Path, drill: str, words: str) -> None:
    code, said = run(tmp_path / "calm", DRILLED, ["graph", "-1"], 3)
    assert code == 0, said
    more = {"HOLDFAST_ALLOW_INJECT": "1", "HOLDFAST_DIGEST_EVERY": "1"}
    code, said = run(tmp_path / "job", DRILLED, ["graph", "7", *drill.split()], 3, **more)
    assert code == 0, said
    assert words in said and "drill: rank 1" in said, said
    assert ("in the program's memory" in said) == (drill == "flip"), said
    assert digests(tmp_path / "job") == digests(tmp_path / "calm")
