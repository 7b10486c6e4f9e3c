"""A memory error takes a page of a MindSpore rank's arena: training goes on with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from lost_pages import TAKE_PAGE
from mindspore_job import NEEDS_MINDSPORE, digests
from test_mindspore_replicas import run

pytestmark = NEEDS_MINDSPORE

# lose(is_next): takes a page away from the middle of the last version, or of the next one.
LOSES = (
    TAKE_PAGE
    + """

def lose(is_next):
    name = f"rank-{rank}.arena"
    line = next(line for line in open("/proc/self/maps") if line.rstrip().endswith(name))
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    version = ctypes.c_uint64.from_address(start + 56).value
    place = (version + is_next) % 2
    page = start + (1 + 2 * place) * (end - start) // 4 // 4096 * 4096
    take_page(page, True)


class Losing(Callback):
    def on_train_step_begin(self, run_context):
        is_due = rank == 1 and run_context.original_args().cur_step_num == at
        if is_due and not os.path.exists("lost"):
            open("lost", "x").close()
            lose(sys.argv[3] == "next")


net = nn.SequentialCell(nn.Dense(8, 2048), nn.ReLU(), nn.Dense(2048, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
model = Model(net, nn.MSELoss(), optimizer)
model.train(4, data, [Losing()], dataset_sink_mode=False)
"""
)


@pytest.mark.parametrize("which", ["last", "next"])
def test_mindspore_a_lost_page_of_an_arena_costs_at_most_the_step(
    tmp_path: Path, which: str
) -> None:
    code, said = run(tmp_path / "calm", LOSES, ["graph", "-1", which], 2)
    assert code == 0 and "memory errors" not in said, said
    code, said = run(tmp_path / "job", LOSES, ["graph", "7", which], 2)
    assert code == 0, said
    assert (tmp_path / "job" / "lost").exists()
    assert "rank 1 (process" in said and "memory errors have taken 1 page" in said
    assert ("nothing is lost" in said) == (which == "last"), said
    assert digests(tmp_path / "job") == digests(tmp_path / "calm")
