"""Fast reading and writing gives the same as MindSpore's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindspore_job import NEEDS_MINDSPORE, make_data

pytestmark = NEEDS_MINDSPORE

if not NEEDS_MINDSPORE.args[0]:
    import mindspore as ms
    import mindspore.dataset as ds
    import numpy as np
    from mindspore import nn

    from holdfast.mindspore import _last, _pipeline, _random


def mnist(folder: Path) -> Any:
    data = ds.MnistDataset(str(folder), num_shards=2, shard_id=1)
    data = data.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
    return data.map(ds.transforms.TypeCast(ms.int32), "label").batch(16)


def slices(folder: Path) -> Any:
    return ds.NumpySlicesDataset((np.arange(480.0), np.arange(480)), shuffle=True).batch(7)


def in_order(folder: Path) -> Any:
    return ds.NumpySlicesDataset(np.arange(480.0), sampler=ds.SequentialSampler()).batch(7)


def drawn(folder: Path) -> Any:
    sampler = ds.DistributedSampler(2, 1, shuffle=True)
    sampler.add_child(ds.SequentialSampler())
    return ds.NumpySlicesDataset(np.arange(480.0), sampler=sampler).batch(7)


def cropped(folder: Path) -> Any:
    data = ds.MnistDataset(str(folder), num_shards=2, shard_id=1)
    return data.map([ds.vision.RandomCrop(28, padding=2)], "image").batch(16)


def shuffled(folder: Path) -> Any:
    return mnist(folder).shuffle(3)


def own_function(folder: Path) -> Any:
    return ds.NumpySlicesDataset(np.arange(480.0)).map(lambda x: x + 1).batch(7)


def own_order(folder: Path) -> Any:
    return ds.NumpySlicesDataset(np.arange(480.0), sampler=[3, 1, 2]).batch(2)


def own_child(folder: Path) -> Any:
    sampler = ds.SequentialSampler()
    sampler.add_child(ds.IterSampler([3, 1, 2]))
    return ds.MnistDataset(str(folder), sampler=sampler).batch(2)


def told(folder: Path) -> Any:
    data = ds.MnistDataset(str(folder))
    return data.map(ds.vision.HWC2CHW(), "image", callbacks=[ds.DSCallback()]).batch(2)


def own_batches(folder: Path) -> Any:
    return ds.NumpySlicesDataset(np.arange(480.0)).batch(lambda info: 7)


def read(make: Callable[[], Any], first: int, fast: bool) -> list[str]:
    """Return the digests of the batches of three epochs, after the first `first`."""
    ms.dataset.config.set_seed(5)
    ms.dataset.config.set_fast_recovery(fast)
    pipeline = make()
    size = pipeline.get_dataset_size()
    if first:
        pipeline.set_init_step(first)
    rows = pipeline.create_tuple_iterator(num_epochs=3)
    found = []
    for _ in range(first // size, 3):
        for row in rows:
            words = b"".join(column.asnumpy().tobytes() for column in row)
            found.append(hashlib.sha256(words).hexdigest())
    return found


def own_order_of(rank: int, call: int, seed: _random.DataSeed, **shards: int) -> list[int]:
    """Return the order in which a rank reads a data set made for a call of Model.train."""
    data = ds.NumpySlicesDataset(np.arange(40), shuffle=True, **shards).map(lambda x: x).batch(1)
    seed.give(data, rank, call)
    found = [int(row[0].asnumpy()[0]) for row in data]
    seed.take_back()
    return found


def test_mindspore_data_without_a_seed_is_parted_among_the_ranks() -> None:
    ms.dataset.config.set_seed(5489)  # MindSpore's value for "no seed".
    seeds = [_random.DataSeed() for _ in range(2)]
    for call in (1, 2):  # A seed left by call 1 would change call 2.
        parts = [own_order_of(r, call, seeds[r], num_shards=2, shard_id=r) for r in range(2)]
        assert sorted(parts[0] + parts[1]) == list(range(40))
        whole = [own_order_of(r, call, seeds[r]) for r in range(2)]
        assert whole[0] != whole[1] and sorted(whole[0]) == list(range(40))


@pytest.mark.parametrize("make", [mnist, slices, in_order, drawn])
def test_mindspore_a_pipeline_that_draws_nothing_skips_to_the_same_batches(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    folder = make_data(tmp_path / "data", 480)
    assert _pipeline.draws_nothing(make(folder))
    whole = read(lambda: make(folder), 0, fast=False)
    size = len(whole) // 3
    assert len(set(whole)) > size or make is in_order  # Each epoch has another order.
    for first in (1, size, 2 * size + 3):
        for fast in (False, True):
            assert read(lambda: make(folder), first, fast) == whole[first:], (first, fast)


def test_mindspore_a_pipeline_that_may_draw_is_replayed(tmp_path: Path) -> None:
    folder = make_data(tmp_path / "data", 96)
    for make in (cropped, shuffled, own_function, own_batches, own_order, own_child, told):
        assert not _pipeline.draws_nothing(make(folder)), make


def test_mindspore_the_last_checkpoint_has_the_bytes_of_mindspore_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore.train import serialization

    class Values(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            kinds = (ms.float32, ms.float16, ms.bfloat16, ms.int64, ms.uint8, ms.bool_)
            for i, kind in enumerate(kinds):
                value = ms.Tensor(np.arange(300).reshape(3, 100), kind)
                setattr(self, f"p{i}", ms.Parameter(value, name=f"value.{kind}.ü"))

    cell = Values()
    for slice_kb in (serialization.SLICE_SIZE, 1):  # A large value is written in parts.
        monkeypatch.setattr(serialization, "SLICE_SIZE", slice_kb)
        written = []
        for quick in (False, True):
            more = {"__exception_save__": True, "step_num": 70_000, "x": 1.5, "note": "später"}
            path = tmp_path / f"{slice_kb}-{quick}.ckpt"
            if quick:
                with _last._quick_writer():
                    ms.save_checkpoint(cell, str(path), append_dict=more)
            else:
                ms.save_checkpoint(cell, str(path), append_dict=more)
            written.append(path.read_bytes())
        assert written[0] == written[1]
        assert len(written[0]) > 6 * 300
    loaded = ms.load_checkpoint(str(path))
    assert int(loaded["step_num"].asnumpy()) == 70_000
