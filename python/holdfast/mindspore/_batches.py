"""The batches of an epoch for the program's own loop, from where a predecessor stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.mindspore import _pipeline


class Batches(NamedTuple):
    """The batches of an epoch that are not done yet."""

    rows: Iterator[Any]
    leaves_generators: bool  # No other thread draws from Python's and NumPy's.


def batches(data: Iterable[Any], done: int) -> Batches:
    """Return the batches after the first `done`. These are skipped if making them draws nothing."""
    from mindspore import dataset

    if not isinstance(data, dataset.Dataset):
        return Batches(itertools.islice(iter(data), done, None), leaves_generators=True)
    calm = _pipeline.is_native(data)
    if not done:
        return Batches(iter(data), calm)
    if done >= data.get_dataset_size():
        return Batches(iter(()), calm)
    if not _pipeline.draws_nothing(data):
        return Batches(itertools.islice(iter(data), done, None), calm)
    first, quick = data.get_init_step(), dataset.config.get_fast_recovery()
    dataset.config.set_fast_recovery(True)
    data.set_init_step(done)
    try:
        return Batches(iter(data), calm)
    finally:
        data.set_init_step(first)
        dataset.config.set_fast_recovery(quick)
