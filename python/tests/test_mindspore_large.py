"""Large contents of callbacks, and files written between two calls, outlive a process."""
# With --ci: whole jobs with callbacks and spares.

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    import numpy as np

    from holdfast._abi import Op
    from holdfast.mindspore import _bulk, _callbacks, _operators, _pipeline, _saving

    class Weighted(ms.nn.Cell):
        def __init__(self, operator: Any) -> None:
            super().__init__()
            self.operator = operator

        def construct(self, x, weights):  # type: ignore[no-untyped-def]
            return (self.operator(x) * weights).sum()


@pytest.mark.kill
def test_mindspore_what_callbacks_hold_and_large_things_are_as_without_kills(
    tmp_path: Path,
) -> None:
    found = []
    for kind in ("calm", "kill"):
        program = [str(HERE / "mindspore_large.py"), kind]
        run = Job(tmp_path / kind, tmp_path, program, spares=None, options=("--rehearse",))
        try:
            run.end()
        finally:
            run.stop()
        assert len(list((tmp_path / kind).glob("killed-*"))) == (2 if kind == "kill" else 0)
        found.append(digests(tmp_path / kind))
    assert {"final-0.ckpt", "between-0-1.ckpt", "out-1/call1-1_3.ckpt"} <= set(found[0])
    assert found[0] == found[1]


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
    assert len(first) == 3 and not said  # One file each for weights, list and table.
    _callbacks.attributes(held, said.append)
    bulk.sweep(set())
    assert files(tmp_path) == first  # Nothing has changed.
    packed = pickle.dumps(kept)
    assert len(packed) < 2000
    held.table[3, 4] = 5
    held.long.append(1.0)
    later = pickle.dumps(_callbacks.attributes(held, said.append))
    bulk.sweep(set())
    assert len(set(files(tmp_path)) - set(first)) == 2  # None for the weights.
    for text, table, count in ((packed, 0, 9000), (later, 5, 9001)):
        other: Any = SimpleNamespace(best=None, long=[], few=[], table=None)
        mine = other.long
        _callbacks.give_back(other, pickle.loads(text))
        assert other.table[3, 4] == table and other.few == [1]
        assert other.long is mine and len(mine) == count and mine[8999] == 8999.0
        assert other.best["b"].name == "b" and float(other.best["b"].asnumpy()[0, 0]) == 1
        assert isinstance(other.best["a"], ms.Parameter)
    for _ in range(2):
        _callbacks.attributes(held, said.append)
        bulk.sweep(set())
    assert len(files(tmp_path)) == 3  # Older files are gone.
    successor = _bulk.Bulk(tmp_path, 0, [])
    successor.take("x", b"data")
    assert len(files(tmp_path)) == 4  # No file was overwritten.
    held.best["net"] = print  # Now it is no data, so nothing is written for it.
    assert "best" not in _callbacks.attributes(held, said.append)
    held.table = np.broadcast_to(np.zeros(1), (9000, 1000))
    assert "table" not in _callbacks.attributes(held, said.append) and "'table'" in said[-1]


def test_mindspore_much_data_is_left_out_before_it_ends_the_job() -> None:
    said: list[str] = []
    texts = [f"{j:040}" for j in range(1000)]
    held: Any = SimpleNamespace(**{f"texts{i}": [*texts] for i in range(40)})
    kept = _callbacks.all_attributes([held], said.append)[0]
    assert 5 < len(kept) < 40 and "is not kept any more" in said[0]
    assert len(pickle.dumps(kept)) < 1 << 20


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
    engine = SimpleNamespace(say_once=said.append, rehearses=False)
    trainer: Any = SimpleNamespace(passes=lambda: bool(said) or now, engine=engine)
    for place in (ms, ms.train, ms.train.serialization):
        monkeypatch.setattr(place, "save_checkpoint", ms.train.serialization.save_checkpoint)
    _saving.apply(trainer)
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
