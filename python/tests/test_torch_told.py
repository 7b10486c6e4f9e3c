"""What was exchanged between passes is read again, whatever became of the file."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from holdfast.torch import _records  # noqa: E402
from holdfast.torch._early import Early  # noqa: E402
from holdfast.torch._told import Told  # noqa: E402


def tell(path: Path, values: list[float], version: int) -> tuple[Told, list[str]]:
    said: list[str] = []
    told = Told(said.append)
    told.open(path, 1)
    told.leave_pass(0)
    for value in values:
        told.note("world", torch.tensor([value]), version)
    return told, said


def again(path: Path, version: int, number: int = 3) -> list[float]:
    told = Told(print)
    told.open(path, version)
    told.leave_pass(0)
    out = [torch.tensor([-1.0]) for _ in range(number)]
    return [float(x) for x in out if told.again("world", x)]


def test_torch_what_was_told_counts_once_a_later_step_is_done(tmp_path: Path) -> None:
    tell(tmp_path / "told", [1.0, 2.0], version=5)
    assert again(tmp_path / "told", version=6) == [1.0, 2.0]
    assert again(tmp_path / "told", version=5) == []
    assert again(tmp_path / "told", version=6) == []  # The one before has dropped them.


def test_torch_a_file_that_ends_in_the_midst_of_a_record_is_read_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "told"
    tell(path, [1.0, 2.0], version=5)
    path.write_bytes(path.read_bytes()[:-3])
    assert again(path, version=6) == [1.0]
    assert again(path, version=7) == [1.0]  # Nor has that one left anything behind a torn record.


def test_torch_more_than_is_kept_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_records, "_LIMIT", 150)
    said: list[str] = []
    told = Told(said.append)
    told.open(tmp_path / "told", 1)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        told.note("world", torch.tensor([value]), 2)
    assert len(said) == 1 and "more than" in said[0]
    assert (tmp_path / "told").stat().st_size <= 150


def test_torch_an_object_of_another_length_is_the_ranks_own(tmp_path: Path) -> None:
    tell(tmp_path / "told", [1.0, 2.0], version=5)
    told = Told(print)
    told.open(tmp_path / "told", 6)
    told.leave_pass(0)
    own, value = torch.tensor([7.0, 8.0]), torch.zeros(1)
    assert told.again("world", own) and told.again("world", value)
    assert own.tolist() == [7.0, 8.0] and value.tolist() == [2.0]


def test_torch_a_loop_of_ones_own_that_exchanges_between_its_steps_is_told_nothing(
    tmp_path: Path,
) -> None:
    told, _ = tell(tmp_path / "told", [1.0], version=1)
    told.see_own_loop()
    told.enter_pass()
    told.note("world", torch.tensor([2.0]), 4)
    assert again(tmp_path / "told", version=6) == []


def test_torch_ranks_see_that_they_were_told_different_things(tmp_path: Path) -> None:
    digests = set()
    for name, values in (("a", [1.0, 2.0]), ("b", [3.0, 4.0]), ("c", [1.0])):
        tell(tmp_path / name, values, version=5)
        told = Told(print)
        told.open(tmp_path / name, 6)
        digests.add(told.digest())
    assert len(digests) == 2


def test_torch_calls_before_state_are_written_on_after_a_torn_line(tmp_path: Path) -> None:
    place = SimpleNamespace(rank=0, directory=str(tmp_path), run_id=7)
    engine: Any = SimpleNamespace(waits_spare=False, place=place)
    for process in range(3):  # Each exchanges once more than the one before, at another place.
        early = Early(engine)
        made = [early._begin("world", part) for part in "abc"[: process + 1]]
        assert made == ["exchange-world-1"] * len(made)
        path = tmp_path / "calls-0.7"
        assert path.read_text().count("\n") == process + 1
        with path.open("a") as file:
            file.write('["world", "d", 1, "killed he')


OWN_LOOP = """
def main(told, steps, evaluations):
    ask(told, 10)
    for _ in range(2):
        pass
    n = told.n
    while n < steps:
        if n in evaluations:
            evaluate(told, n)
        told.see_own_loop()
        told.enter_pass()
        n += 1

def evaluate(told, n):
    for k in range(2):
        ask(told, n)
"""


def in_a_loop_of_its_own(path: Path, evaluations: list[int], first: int = 0) -> list[int]:
    """Return what a program was told again, of what it asks before and within its loop."""
    said = []

    def ask(told: Any, n: int) -> None:
        if not told.again("world", torch.tensor([0.0])):
            told.note("world", torch.tensor([float(n)]), first)
        else:
            said.append(n)

    told: Any = Told(print)
    told.open(path, first)
    told.n = first
    found: dict[str, Any] = {"ask": ask}
    exec(compile(OWN_LOOP, "program.py", "exec"), found)
    # On a stack of its own: pytest's has loops, too.
    thread = Thread(target=found["main"], args=(told, first + 2, evaluations))
    thread.start()
    thread.join()
    return said


def test_torch_what_was_asked_within_a_loop_of_ones_own_is_not_told_elsewhere_in_it(
    tmp_path: Path,
) -> None:
    assert in_a_loop_of_its_own(tmp_path / "told", [0]) == []
    assert in_a_loop_of_its_own(tmp_path / "told", [10], first=10) == []
    assert in_a_loop_of_its_own(tmp_path / "told", [20], first=20) == []


def test_torch_what_was_asked_before_a_loop_of_ones_own_is_told_again(tmp_path: Path) -> None:
    assert in_a_loop_of_its_own(tmp_path / "told", []) == []
    assert in_a_loop_of_its_own(tmp_path / "told", [], first=10) == [10]
    assert in_a_loop_of_its_own(tmp_path / "told", [], first=20) == [10]
