"""What callbacks use without holding it, and large things that they hold, outlive a process."""
# With --ci: whole jobs with callbacks and spares.

from __future__ import annotations

import functools
import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    import numpy as np

    from holdfast._core import Op
    from holdfast.mindspore import _bulk, _callbacks, _operators, _pipeline, _reach, _saving

    class Weighted(ms.nn.Cell):
        def __init__(self, operator: Any) -> None:
            super().__init__()
            self.operator = operator

        def construct(self, x, weights):  # type: ignore[no-untyped-def]
            return (self.operator(x) * weights).sum()


@pytest.mark.kill
def test_mindspore_what_callbacks_use_and_large_things_are_as_without_kills(
    tmp_path: Path,
) -> None:
    found, printed = [], []
    for kind in ("calm", "kill"):
        program = [str(HERE / "mindspore_reach.py"), kind]
        run = Job(tmp_path / kind, tmp_path, program, spares=1)
        try:
            run.end()
        finally:
            run.stop()
        assert len(list((tmp_path / kind).glob("killed-*"))) == (2 if kind == "kill" else 0)
        found.append(digests(tmp_path / kind))
        printed.append({line for line in run.logs().splitlines() if line.startswith("COUNT")})
    assert {"final-0.ckpt", "between-0-1.ckpt", "out-1/call1-1_3.ckpt"} <= set(found[0])
    assert found[0] == found[1]
    assert printed[0] == printed[1]


@pytest.fixture
def bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = _bulk.Bulk(tmp_path, 0, [])
    monkeypatch.setattr(_bulk, "current", made)
    return made


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("mindspore-bulk-*"))


def test_mindspore_large_things_lie_in_files_and_are_written_when_they_change(
    tmp_path: Path, bulk: Any
) -> None:
    said: list[str] = []
    weights = OrderedDict(
        (name, ms.Parameter(ms.Tensor(np.full((200, 200), i, np.float32)), name))
        for i, name in enumerate("ab")
    )
    held: Any = SimpleNamespace(best=weights, long=[float(i) for i in range(9000)], few=[1])
    held.table = np.zeros((100, 200))
    kept = _callbacks.attributes(held, said.append)
    bulk.sweep(set())
    first = files(tmp_path)
    assert len(first) == 5 and not said  # Two parameters, two pieces of the list, the table.
    _callbacks.attributes(held, said.append)
    bulk.sweep(set())
    assert files(tmp_path) == first  # Nothing has changed.
    packed = pickle.dumps(kept)
    assert len(packed) < 20_000
    held.table[3, 4] = 5
    held.long.append(1.0)
    held.best["a"] = ms.Parameter(ms.Tensor(np.full((200, 200), 7, np.float32)), "a")
    later = pickle.dumps(_callbacks.attributes(held, said.append))
    bulk.sweep(set())
    assert len(set(files(tmp_path)) - set(first)) == 2  # The table and one of the weights.
    for text, table, count, weight in ((packed, 0, 9000, 0), (later, 5, 9001, 7)):
        other: Any = SimpleNamespace(best=None, long=[], few=[], table=None)
        mine = other.long
        _callbacks.give_back(other, pickle.loads(text))
        assert other.table[3, 4] == table and other.few == [1]
        assert other.long is mine and len(mine) == count and mine[8999] == 8999.0
        assert float(other.best["a"].asnumpy()[0, 0]) == weight and other.best["b"].name == "b"
    for _ in range(2):
        _callbacks.attributes(held, said.append)
        bulk.sweep(set())
    assert len(files(tmp_path)) == 5  # What was before is gone.
    successor = _bulk.Bulk(tmp_path, 0, [])
    successor.take("x", [np.ones(9)])
    assert len(files(tmp_path)) == 6  # None was overwritten.
    held.best["net"] = print  # No data any more, and nothing is written for it.
    assert "best" not in _callbacks.attributes(held, said.append)
    held.table = np.broadcast_to(np.zeros(1), (9000, 1000))
    assert "table" not in _callbacks.attributes(held, said.append) and "'table'" in said[-1]


def test_mindspore_samples_that_never_change_are_looked_at_in_every_so_many_steps(
    tmp_path: Path, bulk: Any
) -> None:
    held: Any = SimpleNamespace(samples=np.zeros(1 << 21))
    names = []
    for step in range(100):
        if step in (10, 80):
            held.samples[5] += 1
        elif step == 95:
            held.samples = held.samples + 1
        _callbacks.attributes(held, print)
        bulk.sweep(set())
        names.append(files(tmp_path)[-1])
    changes = [i for i in range(1, 100) if names[i] != names[i - 1]]
    assert changes == [10, 90, 95]


def test_mindspore_parameters_that_others_have_too_are_set_in_place(bulk: Any) -> None:
    teacher = ms.Parameter(ms.Tensor(np.ones(3, np.float32)), "t")
    held: Any = SimpleNamespace(teacher=[teacher])
    kept = pickle.loads(pickle.dumps(_callbacks.attributes(held, print)))
    ms.ops.assign(teacher, ms.Tensor(np.zeros(3, np.float32)))
    _callbacks.give_back(held, kept)
    assert held.teacher[0] is teacher and teacher.asnumpy().tolist() == [1, 1, 1]


def test_mindspore_much_data_is_left_out_before_it_ends_the_job() -> None:
    said: list[str] = []
    held: Any = SimpleNamespace(**{f"texts{i}": ["x" * 40] * 1000 for i in range(40)})
    kept = _callbacks.all_attributes([held], said.append)[0]
    assert 5 < len(kept) < 40 and "is not kept any more" in said[0]
    assert len(pickle.dumps(kept)) < 1 << 20


losses: list[float] = []
steps = 0


def note(loss: float) -> None:
    global steps
    losses.append(loss)
    steps += 1


class Recorder:
    seen: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.draw = np.random.RandomState(1)

    def end(self, loss: float) -> None:
        note(loss)
        self.seen.append(loss)


def counter() -> Any:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


def test_mindspore_variables_that_callbacks_use_are_kept() -> None:
    recorder, count = Recorder(), counter()
    reach = _reach.Reach()
    odd = ms.train.callback._callback.InternalCallbackParam()  # Raises KeyError where it has none.
    reach.look(1, [recorder, SimpleNamespace(end=functools.partial(count), odd=odd)])
    recorder.end(0.5)
    count()
    kept = pickle.loads(pickle.dumps(_callbacks.attributes(reach, print)))
    own = pickle.loads(pickle.dumps(_callbacks.attributes(recorder, print)))
    drawn = recorder.draw.standard_normal(3).tolist()
    recorder.end(1.5)
    count()
    mine = losses
    _callbacks.give_back(reach, kept)
    _callbacks.give_back(recorder, own)
    assert losses is mine and (losses, steps, Recorder.seen) == ([0.5], 1, [0.5])
    assert count() == 2 and recorder.draw.standard_normal(3).tolist() == drawn


class Source:
    def __init__(self) -> None:
        self.draw, self.large = np.random.default_rng(3), [0] * 100_000

    def __getitem__(self, i: int) -> Any:
        return self.draw.standard_normal()

    def __len__(self) -> int:
        return 4


def test_mindspore_what_draws_in_a_pipeline_goes_back_to_the_start_of_the_call() -> None:
    source = Source()
    data = ms.dataset.GeneratorDataset(source, ["x"], shuffle=False).batch(2)
    parts = _pipeline.Parts(data)
    kept = parts.now()
    assert len(kept) < 2000
    first = [source[i] for i in range(5)]
    parts.put_back(kept)
    assert [source[i] for i in range(5)] == first


def test_mindspore_a_checkpoint_between_calls_that_are_done_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    passes = SimpleNamespace(passes=lambda: bool(said) or now)
    engine: Any = SimpleNamespace(trainer=passes, say_once=said.append)
    for place in (ms, ms.train, ms.train.serialization):
        monkeypatch.setattr(place, "save_checkpoint", ms.train.serialization.save_checkpoint)
    _saving.apply(engine)
    path = str(tmp_path / "best.ckpt")
    network, now = ms.nn.Dense(2, 2), False
    ms.save_checkpoint(network, path)
    there, now = Path(path).read_bytes(), True
    ms.save_checkpoint(ms.nn.Dense(2, 2), path)
    assert Path(path).read_bytes() == there and "best.ckpt" in said[0]


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
def test_mindspore_a_network_with_collectives_is_differentiated(mode: str) -> None:
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, mode))
    try:
        x = ms.Tensor(np.arange(3.0, dtype=np.float32).reshape(3, 1))
        weights = x + 1
        made = (_operators.reduce(0, 1, Op.SUM), _operators.gather(0, 1, 0))
        for operator in (*made, _operators.scatter(0, 1, 0, Op.SUM)):
            found = ms.ops.grad(Weighted(operator))(x, weights)
            assert found.asnumpy().ravel().tolist() == [1, 2, 3]
    finally:
        ms.set_context(mode=before)
