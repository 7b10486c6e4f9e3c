"""The faults on order of holdfast verify, without a job: drawn, judged, and left out of a State."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.verify import _faults
from holdfast.verify._compare import _states
from holdfast.verify._options import parse
from holdfast.verify._places import Drill
from holdfast.verify._records import Rank, Record


def record(steps: int, ranks: int = 3) -> Record:
    return Record({r: Rank(states=[(n, {}) for n in range(steps + 1)]) for r in range(ranks)})


def test_core_verify_draws_as_many_faults_as_are_asked_for_by_their_seed() -> None:
    among, without = _faults.kinds("torch", 3)
    assert set(among) == {"kill", "stop", "hang", "page", "flip"} and not without
    drawn = [_faults.orders(record(20), among, 9, ["0", "1"], seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(order.drills) for order in drawn[0]] == [4, 4, 1]
    assert [order.spares for order in drawn[0]] == ["0", "1", "0"]
    for order in drawn[0]:
        done = [drill.done for drill in order.drills]
        assert done == sorted(done) and all(1 <= n < 20 for n in done)
        assert len({drill.kind for drill in order.drills}) == len(done)
        assert all(b - a >= 3 for a, b in pairwise(done))
    (tiny,) = _faults.orders(record(2), among, 1, ["0"], 1)
    assert tiny.drills[0].done == 1


def test_core_verify_leaves_out_faults_that_such_a_program_can_not_have() -> None:
    among, without = _faults.kinds("mindspore", 2)
    assert among == ["kill", "stop", "hang"]
    assert "no page is lost" in without[0] and "2 ranks have no majority" in without[1]


FLIP, KILL = Drill(0, "flip", 1, 4, "stage"), Drill(1, "kill", 2, 8, "sum")


@pytest.mark.parametrize(
    ("said", "remarks", "lost", "results"),
    [
        ("", [], [], ["not reached", "not reached"]),
        (
            "holdfast: drill: this rank holds nothing that is compared with the others",
            [],
            [],
            ["there is nothing of the kind", "not reached"],
        ),
        (
            "is flipped in the program's memory\nholdfast: drill: this process is killed",
            ["rank 1 holds other values of `w` than rank 0"],
            [1],
            ["came", "NOT NAMED"],
        ),
        (
            "is flipped in the program's memory\nholdfast: drill: this process is killed",
            ["rank 2 holds other values of `w` than rank 0"],
            [2],
            ["NOT NAMED", "came"],
        ),
    ],
)
def test_core_verify_finds_a_fault_that_nobody_has_named(
    tmp_path: Path, said: str, remarks: list[str], lost: list[int], results: list[str]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "worker_1.log").write_text(said)
    told = [{"kind": "replicas", "sentence": remark} for remark in remarks]
    (log / "last_status.json").write_text(json.dumps({"remarks": told}))
    faults = [{"cause": f"rank {rank} was killed"} for rank in lost]
    (log / "recoveries.jsonl").write_text(json.dumps({"ranks": lost, "faults": faults}) + "\n")
    assert list(_faults.results([FLIP, KILL], tmp_path).values()) == results


def test_core_verify_counts_a_flipped_bit_only_if_it_stays() -> None:
    def flipped(*steps: int) -> Record:
        made = record(10)
        made.ranks[1].states = [(n, {"w": "x"} if n in steps else {}) for n in range(11)]
        return made

    assert _states(record(10), flipped(5), [FLIP]) is None
    assert _states(record(10), flipped(5), []) is not None
    # Before the flip; for longer than a step; long after it; at the end.
    for steps in [(3,), (5, 6, 7), (8,), (10,)]:
        found: Any = _states(record(10), flipped(*steps), [FLIP])
        assert found.rank == 1 and found.n in steps


def test_core_verify_takes_no_program_for_a_number_of_faults() -> None:
    assert parse(["--faults", __file__]).faults == 8
    assert parse(["--faults", "3", "--seed", "5", __file__]).faults == 3
    options = parse(["--ranks", "3", __file__, "--faults"])
    assert options.faults == 0 and options.command[-1] == "--faults"
