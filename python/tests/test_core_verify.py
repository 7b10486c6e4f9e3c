"""The parts of holdfast verify, without a job: what it records, compares, plans and names."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from holdfast._digest import digest, shown
from holdfast.verify import _files, _prints
from holdfast.verify._culprit import Remembered, Source, culprits, names_at
from holdfast.verify._culprit import compare as compare_memory
from holdfast.verify._mirror import made, mirror
from holdfast.verify._note import Notes
from holdfast.verify._options import parse
from holdfast.verify._places import Kill, Places
from holdfast.verify._plan import epochs_of, kill_runs
from holdfast.verify._probe import Probe, Told
from holdfast.verify._records import Line, Past, Rank, Record, read
from holdfast.verify._report import Verdict, epochs_tried


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def test_core_verify_digests_follow_what_things_hold() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    for a, b in [
        ([1, {"a": 2.0}], [1, {"a": 2.0}]),
        ({3, 1, 2}, {2, 3, 1}),
        (Point(1), Point(1)),
        (random.Random(5), random.Random(5)),
        (float("nan"), float("nan")),
        (ring, ring),
    ]:
        assert digest(a) == digest(b)
    for a, b in [
        ([1, 2], [2, 1]),
        (1, 1.0),
        ("1", 1),
        (Point(1), Point(2)),
        (random.Random(5), random.Random(6)),
        ([0] * 1000, [0] * 999 + [1]),
        (0.0, -0.0),
    ]:
        assert digest(a) != digest(b)
    assert shown(7) == "7" and shown([1, 2]) == "[1, 2]"
    assert shown([0] * 1000).startswith("list of 1000 #")
    for array in (numpy.zeros(2, numpy.float32), numpy.zeros(0), numpy.zeros((1, 1))):
        assert shown(array).startswith("ndarray ")
    assert "2.5" in shown(numpy.array([2.5]))


PROGRAM = """
import itertools

class Meter:
    total = 0

    def __init__(self):
        self.count = 0

def make():
    closed = 0
    def count():
        nonlocal closed
        closed += 1
    return count

def default(seen=[]):
    seen.append(1)

count, meter, seen = make(), Meter(), 0
counts, meters = [0] * 1000, {k: Meter() for k in range(100)}
numbers = itertools.count()
given = Meter()
rates, pairs, turns = iter([3, 2, 1]), zip(iter((1, 2)), iter("ab")), itertools.cycle([1])
kept = Meter()

def change():
    global seen
    seen += 1
    count(); default(); next(numbers); next(rates); next(pairs)
    kept.count += 1
    given.count, given.more = seen, -seen
    Meter.total += 1
    meter.count += 1
    counts[3] += 1
    meters[7].count += 1

def train(look):
    running = 0.0
    for i, x in enumerate([1, 2]):
        running += x
        change()
        look()
"""


def looks_at(
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: Callable[[Any], list[Any]] = lambda module: [],
) -> list[dict[str, str | None]]:
    """Return what a Probe sees at each look() of a program's train(look)."""
    path = folder / "program.py"
    path.write_text(text)
    module: Any = types.ModuleType("__main__")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(text, str(path), "exec"), module.__dict__)
    probe, looks = Probe(), []
    module.train(lambda: looks.append(probe.look(sys._getframe(1), kept(module))))
    return looks


def told(module: Any) -> Told:
    return Told(module.given, frozenset([digest(module.given.count)]), (int,))


def test_core_verify_sees_all_that_a_program_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = looks_at(PROGRAM, tmp_path, monkeypatch, lambda m: [m.kept, told(m)])[1]
    assert {
        "seen": "2",
        "Meter.total": "2",
        "meter.count": "2",
        "numbers": "count(2)",
        "given.more": "-2",
        "rates": "list_iterator with 1 to come",
        "pairs[0]": "tuple_iterator with 0 to come",
        "closed (closure of make.<locals>.count)": "2",
        "running (local of train)": "3.0",
        "i (local of train)": "1",
        "seen (default of default)": "[1, 1]",
    }.items() <= changed.items()
    assert changed["counts"].startswith("list of 1000 #")
    assert changed["meters"].startswith("dict of 100 #")
    assert not {"turns", "kept.count", "given.count"} & changed.keys()
    assert "count" not in changed and "make" not in changed


def rank_of(*memory: dict[str, str]) -> Rank:
    moments = [((n, "done"), names) for n, names in enumerate(memory, 1)]
    return Rank(memory=moments, states=[(n, {}) for n in range(len(memory) + 1)])


def test_core_verify_names_what_the_program_changes_and_the_line_reads(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "total = 0\nfor x in loop:\n    total += x\n    loss = x\nprint('a',\n  total)\n"
    )
    assert names_at(str(path), 6) == {"print", "total"}
    clean = Record({0: rank_of({"total": "1", "loss": "1"}, {"total": "3", "loss": "2"})})
    other = Record({0: rank_of({"total": "1", "loss": "5"}, {"total": "2", "loss": "2"})})
    things = compare_memory(clean, other)
    assert things == [
        Remembered("loss", 0, 1, "1", "5"),
        Remembered("total", 0, 2, "3", "2"),
    ]
    source = Source([str(path)])
    assert [t.name for t in culprits(things, source, 2)] == ["total"]
    assert [t.name for t in culprits(things, source, 2, [(str(path), 5)])] == ["total"]
    assert [t.name for t in source.carried(things, [])] == ["total"]
    assert source.carried(things, ["tot*"]) == []


def test_core_verify_leaves_out_what_a_void_step_has_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("while go:\n  learn(x)\n  x = get()\n")
    memory = [((1, "begins"), {"x": "1"}), ((1, "done"), {"x": "2"})]
    clean = Record({0: Rank(memory=memory)})
    other = Record({0: Rank(memory=[memory[0], ((1, "begins"), {"x": "2"}), memory[1]])})
    things = compare_memory(clean, other)
    assert [(t.name, t.lasts) for t in things] == [("x", False)]
    assert Source([str(path)]).carried(things, []) == []
    other.ranks[0].memory[-1] = ((1, "done"), {"x": "3"})
    assert [t.name for t in Source([str(path)]).carried(compare_memory(clean, other), [])] == ["x"]


def test_core_verify_reads_what_a_loop_carries_from_turn_to_turn(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "while go:\n  learn(x)\n  x, y = get()\n  loss = f(y)\n  mean = loss.mean()\n"
        "for a in b:\n  a = a - 1\n  for k in a:\n    best = max(best, k)\n"
    )
    source = Source([str(path)])
    names = ["x", "y", "loss", "mean", "a", "k", "best"]
    carried = {n for n in names if source.changes(Remembered(n, 0, 1, "1", "2"))}
    assert carried == {"x", "best"}
    fresh = {n for n in names if source.sets_first(Remembered(n, 0, 1, "1", "2"))}
    assert fresh == {"y", "loss", "mean", "a", "k"}
    only = Remembered("loss (local of main)", 0, 1, "1", "2")
    assert culprits([only], source, 1) == []  # Each step sets it anew, so it is no cause.
    assert source.changes(Remembered("draw", 0, 1, "Generator #1", "Generator #2"))


def record_of(*lines: tuple[int, str, int]) -> Record:
    printed = [Line((("p.py", line),), text, n, 1) for line, text, n in lines]
    return Record({0: Rank(printed=printed)})


def test_core_verify_compares_printed_lines_by_their_source() -> None:
    clean = record_of((3, "loss 0.31 at 10:01", 1), (3, "loss 0.25 at 10:02", 2))
    again = record_of((3, "loss 0.31 at 11:07", 1), (3, "loss 0.25 at 11:08", 2))
    masks = _prints.Masks()
    assert _prints.compare(clean, again, masks)
    masks.learn(clean, again)
    assert not _prints.compare(clean, again, masks)
    twice = record_of(
        (3, "loss 0.31 at 9:01", 1),
        (3, "loss 0.31 at 9:02", 1),
        *[(3, "loss 0.25 at 9:03", 2)],
        (9, "resumed", 1),
    )
    assert not _prints.compare(clean, twice, masks)  # A replayed step prints again.
    (found,) = _prints.compare(
        record_of((3, "a 0.3", 2)), record_of((3, "a 0.6", 2)), _prints.Masks()
    )
    assert _prints.differing(found.was, found.now) == ("0.3", "0.6")


def test_core_verify_compares_files(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("one\ntwo\n")
    b.write_text("one\none\ntwo\n")
    assert not _files.compare({"x": a}, {"x": b}, (), set())  # A replay writes its line again.
    assert [f.how for f in _files.compare({"x": a}, {"x": b}, ("x",), set())] == [
        "said 'two', then 'one'"
    ]
    assert _files.compare({"x": a}, {}, (), set())[0].how == "was there, now is not"
    assert not _files.compare({"x": a}, {}, ("y*",), set())


def test_core_verify_gives_each_run_the_same_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "train.py").write_text("1")
    (source / "sub" / "old").write_text("2")
    mirror(source, tmp_path / "copy", tmp_path)
    (tmp_path / "copy" / "sub" / "old").write_text("3")
    (tmp_path / "copy" / "new").write_text("4")
    assert set(made(source, tmp_path / "copy")) == {"sub/old", "new"}
    assert (source / "sub" / "old").read_text() == "2"


def test_core_verify_plans_a_kill_at_each_place_that_there_is() -> None:
    places = {n: {"forward": 3, "update": 1} for n in range(1, 9)}
    ranks = {
        r: Rank(
            states=[(n, {}) for n in range(9)],
            places=places,
            past=[Past("between steps", n, 0) for n in range(1, 9)]
            + [Past("save", 8, 0)] * (r == 0),
        )
        for r in range(2)
    }
    orders = kill_runs(Record(ranks), ["0", "1"], quick=False)
    assert [(o.name, [k.place for k in o.kills]) for o in orders] == [
        (f"kills-{r}-{s}", ["forward", "update", "between steps", *["save"] * (r == 0)])
        for s in "01"
        for r in range(2)
    ]
    assert all(0 <= k.done < 8 for o in orders for k in o.kills if k.place != "save")
    (quick,) = kill_runs(Record(ranks), ["0"], quick=True)
    assert {k.place for k in quick.kills} == {"forward", "update", "between steps", "save"}
    assert len({k.number for k in quick.kills}) == len(quick.kills)
    *others, one, two = kill_runs(Record(ranks), ["0", "1"], quick=False, servers=range(2, 4))
    assert others == orders and [o.name for o in (one, two)] == [
        "kills-server-2",
        "kills-server-3",
    ]
    assert [(k.victim, k.rank, k.place) for k in two.kills] == [
        ("server 3", 0, place) for place in ("forward", "update", "between steps")
    ]
    assert {k.done for k in one.kills}.isdisjoint(k.done for k in two.kills)
    (quick,) = kill_runs(Record(ranks), ["0"], quick=True, servers=range(2, 4))
    assert [(k.victim, k.place) for k in quick.kills][-1] == ("server 2", "forward")
    assert len({(k.rank, k.place, k.done) for k in quick.kills}) == len(quick.kills)


def test_core_verify_kills_in_each_epoch_and_says_which_had_none() -> None:
    def record(epochs: int, each: int) -> Record:
        steps = range(1, epochs * each + 1)
        rank = Rank(
            states=[(n, {}) for n in steps],
            places={n: {"forward": 3, "backward": 2, "sum": 1, "update": 1} for n in steps},
            past=[Past("between steps", n, 0) for n in steps],
            epochs={n: (n - 1) // each for n in steps},
        )
        return Record({0: rank, 1: rank})

    orders = kill_runs(record(5, 4), ["0", "1"], quick=False)
    for place in ("forward", "update"):  # Each place comes late and early.
        done = [k.done for o in orders for k in o.kills if k.place == place]
        assert min(done) < 8 and max(done) >= 12, done
    for order in orders:
        assert len({k.done // 4 for k in order.kills}) >= 4
    every = [kill for order in orders for kill in order.kills]
    assert epochs_of(record(5, 4), every) == set(range(5))
    outcome = SimpleNamespace(
        order=orders[0], record=Record({0: Rank(kills=[0, 1]), 1: Rank()}), code=0
    )
    verdict: Any = Verdict(outcome, [])  # type: ignore[arg-type]
    assert epochs_tried(record(5, 4), [verdict]) == "2 of 5 epochs had a kill, not 2, 3, 4"
    assert epochs_tried(record(1, 4), [verdict]) == ""


def test_core_verify_kills_once_where_it_is_told_to(tmp_path: Path) -> None:
    kills = [Kill(0, 1, "forward", 2, 1), Kill(1, 0, "forward", 2, 1)]
    for life in range(2):
        pid = os.fork()
        if pid == 0:
            places = Places(kills, str(tmp_path), Notes(str(tmp_path), 1))
            places.begin(1, 2)
            places.began()
            places.at("forward")
            places.at("forward")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-9 if life == 0 else 0)
    assert read(tmp_path).ranks[1].kills == [0]


def test_core_verify_cuts_no_note_in_two(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path), None)
    notes("life")
    notes("opened", n=0, digests={})
    assert not list(tmp_path.iterdir())  # Held back: a spare has no rank yet.
    notes.open(3)
    notes("done", n=1, digests={"a": "b"}, memory={"x": "1"}, places={})
    with open(tmp_path / "rank-3.jsonl", "a") as file:
        file.write('{"what": "do')
    rank = read(tmp_path).ranks[3]
    assert (rank.lives, rank.states, rank.memory) == (
        1,
        [(0, {}), (1, {"a": "b"})],
        [((1, "done"), {"x": "1"})],
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "required: PROGRAM"),
        (["--ranks", "0", __file__], "--ranks is 0"),
        (["--spares", "x", __file__], "--spares is 'x'"),
        (["/nowhere.py"], "there is no program /nowhere.py"),
        (["--fly", __file__], "--fly"),
    ],
)
def test_core_verify_tells_a_wrong_command_line_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in said and len(said.splitlines()) == 1


def test_core_verify_runs_the_copy_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert parse([str(tmp_path / "train.py"), "--lr", "1"]).command == ("train.py", "--lr", "1")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert parse(["../train.py"]).command == (str(tmp_path / "train.py"),)
    assert parse(["-m", "train", "--steps", "2"]).command == ("-m", "train", "--steps", "2")


@pytest.mark.kill
@pytest.mark.parametrize(("form", "code"), [("lost", 1), ("kept", 0)])
def test_core_verify_kills_from_outside_what_has_no_framework(
    tmp_path: Path, form: str, code: int
) -> None:
    program = Path(__file__).parent / "verify" / "outside.py"
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "verify", "--quick", "--json", report, program, form],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    (run,) = json.loads(report.read_text())["runs"]
    assert len([k for k in run["kills"] if k["result"] != "not reached"]) > 0
    assert ("the loss is another one" in done.stdout) == (code == 1)
    assert ("as far as can be seen from outside" in done.stdout) == (code == 0)
