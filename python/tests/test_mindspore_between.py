"""What callbacks and the program do between steps outlives a process that is lost."""
# With --ci: whole jobs with callbacks, compiled three times each.

from __future__ import annotations

import pickle
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests, make_data

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    import numpy as np

    from holdfast._abi import Op
    from holdfast.mindspore import (
        _between,
        _callbacks,
        _cells,
        _data,
        _operators,
        _passed,
        _train,
    )

    class Net(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.sums: list[Any] = []
            self.table = np.zeros(9000)
            self.scaler = ms.amp.DynamicLossScaler(2.0, 2, 3)
            self.own = [ms.Parameter(ms.Tensor([1.0]), name="listed")]


# Kills in the first call of Model.train; in the second, whose parameters were loaded; before and
# after a callback's collective; and after the checkpoint of OnRequestExit.
KILLS = ("1,1,4,end", "0,2,3,begin", "1,3,10,end", "0,3,21,begin", "1,3,25,end")


@pytest.mark.kill
def test_mindspore_what_callbacks_change_and_hold_is_as_without_kills(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 640)
    found = []
    for kind, kills in (("calm", ()), ("kills", KILLS)):
        run = Job(tmp_path / kind, data, [str(HERE / "mindspore_between.py"), *kills])
        try:
            run.end()
        finally:
            run.stop()
        logs = [path.read_text() for path in (tmp_path / kind / "logs").glob("worker_*.log")]
        alone = [log for log in logs if "as if all had sent the same" in log]
        assert len(alone) == (2 if kills else 0)  # The program's first collective says so.
        assert len(list((tmp_path / kind).glob("killed-*"))) == len(kills)
        found.append(digests(tmp_path / kind))
    assert {"held-0.ckpt", "final-1.ckpt", "out/call2-1-1_3.ckpt"} <= set(found[0])
    left = [found[0][f"out/rank_{rank}/left_train.ckpt"] for rank in range(2)]
    assert left[0] == left[1]
    assert found[0] == found[1]


@pytest.mark.kill
def test_mindspore_a_sum_after_the_training_waits_for_nobody_who_has_ended(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 320)
    found = []
    for kind in ("calm", "kill"):
        run = Job(tmp_path / kind, data, [str(HERE / "mindspore_late.py"), kind])
        try:
            run.end()
        finally:
            run.stop()
        # Both first processes print it; a successor makes the sum again, alone.
        assert run.logs().count("LATE [2.]") == (3 if kind == "kill" else 2)
        assert (tmp_path / kind / "killed").exists() is (kind == "kill")
        found.append(digests(tmp_path / kind))
    assert set(found[0]) == {"final-0.ckpt", "final-1.ckpt"}
    assert found[0] == found[1]


@pytest.mark.kill
@pytest.mark.parametrize("seed", ["seed", "none"])
def test_mindspore_a_spare_draws_and_counts_what_its_predecessor_would_have(
    tmp_path: Path, seed: str
) -> None:
    found = []
    for kind in ("calm", "kill"):
        program = [str(HERE / "mindspore_noise.py"), kind, seed]
        run = Job(tmp_path / kind, tmp_path, program, spares=None, options=("--rehearse",))
        try:
            run.end()
        finally:
            run.stop()
        assert (tmp_path / kind / "killed").exists() is (kind == "kill")
        found.append(digests(tmp_path / kind))
    assert set(found[0]) == {"final-0.ckpt", "final-1.ckpt"}
    assert found[0] == found[1]


@pytest.mark.kill
def test_mindspore_a_program_s_own_objects_sums_and_checkpoints_cost_nothing(
    tmp_path: Path,
) -> None:
    found = []
    for kind in ("calm", "kill"):
        run = Job(tmp_path / kind, tmp_path, [str(HERE / "mindspore_own.py"), kind])
        try:
            run.end()
        finally:
            run.stop()
        assert (tmp_path / kind / "killed").exists() is (kind == "kill")
        found.append(digests(tmp_path / kind))
    assert {"final-0.ckpt", "final-1.ckpt", "out-1/n-3_7.ckpt"} <= set(found[0])
    assert found[0] == found[1]


class Holder(SimpleNamespace):
    """Holds any attributes, and allows weak references."""


def holder(**held: Any) -> Any:
    return Holder(**held)


def test_mindspore_attributes_that_are_data_are_kept_and_given_back() -> None:
    said: list[str] = []
    made: dict[str, Any] = {"n": 1, "best": np.array(2.5), "history": [1.0, {"x": (2, None)}]}
    made |= {"t": ms.Tensor([1]), "last": deque([1, 2], maxlen=2), "of": defaultdict(list, a=[1])}
    made |= {"text": b"x", "few": frozenset([1]), "counts": Counter("aab")}
    callback = holder(**made, run=print, weights=ms.Parameter(ms.Tensor([1.0]), name="w"))
    kept = _callbacks.attributes(callback, said.append)
    assert set(kept) == set(made) and not said
    history, last = [0.0], deque([0], maxlen=2)
    other = holder(n=0, best=np.inf, history=history, t=None, last=last, of=defaultdict(list))
    other.counts = Counter("b")
    _callbacks.give_back(other, kept)
    assert (other.n, float(other.best), other.t.asnumpy().tolist()) == (1, 2.5, [1])
    assert other.history is history == [1.0, {"x": (2, None)}]  # The same list: others may hold it.
    assert other.last is last == deque([1, 2]) and last.maxlen == 2
    assert other.of["a"] == [1] and other.of["b"] == []  # It still makes missing entries.
    assert (other.counts, other.text, other.few) == (Counter("aab"), b"x", frozenset([1]))


def test_mindspore_two_attributes_that_were_one_object_meanwhile_are_two_again() -> None:
    callback = holder(best=[1.0], last=[2.0], row=np.ones(2), rows=np.zeros(2))
    kept = _callbacks.attributes(callback, print)
    callback.best, callback.row = callback.last, callback.rows[:]
    _callbacks.give_back(callback, kept)
    assert (callback.best, callback.last) == ([1.0], [2.0])
    assert (callback.row.tolist(), callback.rows.tolist()) == ([1.0, 1.0], [0.0, 0.0])


class Meter:
    def __init__(self, total: int) -> None:
        self.total = total


class Own(SimpleNamespace):
    """A callback whose state_dict() says what is kept of it."""

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.meter.total}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        self.meter.total = held["total"]


def test_mindspore_a_callback_s_state_dict_is_kept_and_other_objects_are_named() -> None:
    said: list[str] = []
    own, plain = Own(meter=Meter(3)), holder(by={"a": [Meter(2)]}, file=print, n=1)
    kept = pickle.loads(pickle.dumps(_callbacks.attributes(own, said.append)))
    other = Own(meter=Meter(0))
    _callbacks.give_back(other, kept)
    assert other.meter.total == 3 and not said
    assert set(_callbacks.attributes(plain, said.append)) == {"n"}
    assert len(said) == 1 and "'by' of callback Holder holds an object of class Meter" in said[0]


def test_mindspore_what_cells_add_up_is_kept_up_to_a_size() -> None:
    said: list[str] = []
    eager, ms_mode = ms.PYNATIVE_MODE, ms.get_context("mode")
    ms.set_context(mode=eager)
    try:
        cell = Net()
        table, cells = cell.table, _cells.Cells(cell, said.append)
        before = cells.now()
        assert not cells.changed()
        cell.sums.append(ms.Tensor([1.0]))
        kept = pickle.loads(pickle.dumps(cells.changed()))
        assert set(kept) == {("", "sums")} and not said
        cells.put(before)
        assert cell.sums == [] and cell.table is table
        cells.put_changed(kept)
        assert cell.sums[0].asnumpy().tolist() == [1.0]
        cell.table = np.ones(9000)
        assert set(cells.changed()) == {("", "sums")} and "'table' of cell Net" in said[0]
        hidden = _cells.hidden_parameters(ms.nn.SequentialCell(cell))
        assert [p.name for p in hidden] == ["scale_value", "counter", "listed"]
    finally:
        ms.set_context(mode=ms_mode)


def test_mindspore_callbacks_of_calls_that_are_passed_hold_what_they_held_at_their_end() -> None:
    said: list[str] = []
    record, history = _passed.Former(), holder(losses=[0.5])
    record.keep(1, [history, holder(n=1)], said.append)  # The second callback is freed at once.
    written = record.packed
    history.losses.append(9.0)  # Made by the program, which makes it again.
    assert record.packed is written
    successor, mine = _passed.Former(), [holder(losses=[]), holder(n=0)]
    successor.load(record.packed)
    successor.give_back(1, mine)
    assert mine[0].losses == [0.5] and mine[1].n == 1 and not said
    for call in range(2, 100):
        record.keep(call, [holder(text="x" * 4000, n=call)], said.append)
    assert len(record.packed) < 300_000 and "of former calls" in said[0]
    successor.load(record.packed)
    for call, there in ((2, False), (99, True)):  # The oldest are dropped first.
        late = holder(n=0)
        successor.give_back(call, [late])
        assert (late.n == call) is there


def test_mindspore_what_a_callback_changes_within_its_data_is_put_back() -> None:
    array = np.arange(3.0)
    callback = holder(milestones={10, 20}, few=frozenset([1]), seen={"a": np.zeros(2), "b": {1}})
    callback.array, callback.sums, callback.named = array, [np.zeros(1)], {"x", "y"}
    held = _between.Held(callback, _callbacks.attributes(callback, print))
    for _ in range(2):  # Repairs.
        held.put_back()
        assert (callback.milestones, callback.few, callback.named) == ({10, 20}, {1}, {"x", "y"})
        assert callback.seen["a"].tolist() == [0, 0] and callback.seen["b"] == {1}
        assert callback.array.tolist() == [0, 1, 2] and callback.sums[0].tolist() == [0]
        callback.milestones.discard(10)
        callback.named.clear()
        callback.seen["a"] += 1
        callback.seen["b"].add(2)
        array += 1
        callback.sums[0] += 1
    callback.array = None  # Then a new array is made, other than the held one.
    held.put_back()
    callback.array += 1
    held.put_back()
    assert callback.array.tolist() == [0, 1, 2]


def test_mindspore_what_a_program_does_to_a_result_of_eval_is_not_in_the_record() -> None:
    found: Any = {"by_class": np.zeros(2), "of": [np.ones(1)]}
    record = _passed.Evaluated()
    assert not record.keep((1, 1), found)
    for _ in range(2):
        found["by_class"] += 1
        found["of"][0] += 1
        found = pickle.loads(record.kept[1, 1])
        assert found["by_class"].tolist() == [0, 0] and found["of"][0].tolist() == [1]
    assert not record.keep((1, 2), 0.5)  # Keeps all results again.
    successor = _passed.Evaluated()
    successor.load(record.packed)
    assert pickle.loads(successor.kept[1, 1])["by_class"].tolist() == [0, 0]


class Outputs(NamedTuple):
    loss: Any
    logits: Any


def test_mindspore_large_outputs_of_a_step_are_left_out() -> None:
    last = {"array": np.ones(9), "last": deque([ms.Tensor(np.ones(3, np.float32))])}
    for size, lacks in ((1000, True), (10, False)):
        made = Outputs(ms.Tensor([0.5]), ms.Tensor(np.ones((size, 1000), np.float32)))
        packed, left = _data.dumps_outputs((made, last), 1 << 20)
        assert left is lacks and len(packed) < 1 << 20
        again, rest = pickle.loads(packed)
        assert type(again) is Outputs and again.loss.asnumpy().tolist() == [0.5]
        assert again.logits.shape == (size, 1000) and bool(again.logits.sum()) is not lacks
        assert rest["array"].all() and rest["last"][0].asnumpy().all()


def test_mindspore_a_guarded_network_is_the_model_s_own() -> None:
    model = ms.Model(ms.nn.Dense(2, 2), ms.nn.MSELoss(), None)
    network = model.train_network
    model._train_network = _train.Guard(SimpleNamespace(), network, SimpleNamespace())
    assert _train.guarded(model._train_network) is network is _train.guarded(network)


def test_mindspore_attributes_that_are_too_large_are_named() -> None:
    said: list[str] = []
    for large in ([0.5] * 50_000, np.zeros(100_000)):
        assert not _callbacks.attributes(holder(large=large), said.append)
        assert "attribute 'large' of callback Holder" in said.pop()


def test_mindspore_a_list_that_holds_itself_ends_nothing() -> None:
    looped: list[Any] = [1]
    looped.append(looped)
    other = holder(looped=[])
    _callbacks.give_back(other, _callbacks.attributes(holder(looped=looped), print))
    assert other.looped[0] == 1 and len(other.looped) == 2


def test_mindspore_parameters_that_callbacks_hold_are_found() -> None:
    own, a, b, c = (ms.Parameter(ms.Tensor([1.0]), name=n) for n in "oabc")
    cell = ms.nn.SequentialCell(ms.nn.Dense(2, 2))
    callback = holder(own=own, one=a, some=(b, own), named={"c": c}, net=cell, text="x")
    assert _callbacks.parameters([callback], [own]) == [a, b, c, *cell.get_parameters()]


def test_mindspore_an_echo_is_what_equal_inputs_of_all_ranks_would_give() -> None:
    ranks, x = 3, np.array([[2], [3], [5]])
    for kind in (np.float32, np.float16, np.int8, np.int16, np.int64):
        given = ms.Tensor(x.astype(kind))
        for op, expected in (Op.SUM, x * ranks), (Op.PRODUCT, x**ranks), (Op.MAX, x):
            all_of_it = _operators.reduce(63, ranks, op)(given).asnumpy()
            assert (all_of_it == expected.astype(kind)).all(), (kind, op, all_of_it)
            for place in range(ranks):
                mine = _operators.scatter(63, ranks, place, op)(given).asnumpy()
                assert (mine == expected[place : place + 1].astype(kind)).all(), (kind, op, mine)
        gathered = _operators.gather(63, ranks, 1)(given).asnumpy()
        assert (gathered == np.tile(x, (ranks, 1))).all()
    flags = ms.Tensor([True, False])
    assert _operators.reduce(63, ranks, Op.SUM)(flags).asnumpy().tolist() == [True, False]
