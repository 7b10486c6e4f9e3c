"""Decide whether a data pipeline may skip to a step at its source, without making former batches.

MindSpore can push a skip down to the source (`fast_recovery`), which takes milliseconds. Making and
dropping all former batches takes as long as they took in training. But with a skip, random
operations do not draw for the skipped batches, so later data would differ from an undisturbed run.
So the skip is used only if everything in the pipeline is known to draw nothing. Otherwise the
batches are made again. For that, the program's own sources and transforms, which may hold random
generators, are first set to what they were when the call of Model.train began.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

from holdfast.mindspore import _callbacks

_MOST_BYTES: Final = 64 << 10  # For all parts together; written at every step.
_MOST_OF_ONE: Final = 8 << 10  # For one attribute of a part.
_PACKAGE: Final = "mindspore.dataset."
_SOURCES: Final = frozenset(
    {
        "Cifar10Dataset",
        "Cifar100Dataset",
        "FashionMnistDataset",
        "ImageFolderDataset",
        "MnistDataset",
        "NumpySlicesDataset",
    }
)
# Samplers that go in order, or draw from the seed and the epoch alone.
_SAMPLERS: Final = frozenset({"DistributedSampler", "RandomSampler", "SequentialSampler"})
_OPERATIONS: Final = frozenset(
    {
        "CenterCrop",
        "Decode",
        "HWC2CHW",
        "Normalize",
        "OneHot",
        "Pad",
        "Rescale",
        "Resize",
        "ToTensor",
        "TypeCast",
    }
)

# MindSpore's own operations that run in Python, or make those after them run there.
_IN_PYTHON: Final = frozenset({"RandomApply", "RandomChoice", "RandomOrder", "ToPIL"})


def is_sharded(dataset: Any) -> bool:
    """Return whether each rank reads a part, so that all ranks need the same seed."""
    sampler = getattr(dataset, "sampler", None)
    if (getattr(dataset, "num_shards", None) or 1) > 1 or type(
        sampler
    ).__name__ == "DistributedSampler":
        return True
    return any(map(is_sharded, getattr(dataset, "children", ())))


def draws_nothing(dataset: Any) -> bool:
    """Return whether a pipeline is known to make each batch the same, whatever came before."""
    if not _own(dataset):
        return False
    kind = type(dataset).__name__
    if kind == "BatchDataset":
        plain = dataset.batch_size_func is None and dataset.per_batch_map is None
        return plain and draws_nothing(dataset.children[0])
    if kind == "MapDataset":
        known = all(_own(o) and type(o).__name__ in _OPERATIONS for o in dataset.operations)
        # A callback hears of steps, and may do anything.
        return known and not dataset.callbacks and draws_nothing(dataset.children[0])
    sampler = getattr(dataset, "sampler", None)
    return kind in _SOURCES and not dataset.children and _is_known(sampler)


def is_native(dataset: Any) -> bool:
    """Return whether no Python code runs in a pipeline.

    Such code might draw from the same random generators as the program's steps.
    """
    if not _own(dataset) or type(dataset).__name__ == "GeneratorDataset":
        return False
    for name in ("batch_size_func", "per_batch_map", "predicate", "sampler"):
        part = getattr(dataset, name, None)
        if part is not None and not _own(part):
            return False
    for operation in getattr(dataset, "operations", None) or ():
        python = type(operation).__name__ in _IN_PYTHON or getattr(operation, "to_pil", False)
        if python or not _own(operation):
            return False
    return not getattr(dataset, "callbacks", None) and all(map(is_native, dataset.children))


def _is_known(sampler: Any) -> bool:
    """Return whether a sampler, which may wrap the program's own, always gives the same indices."""
    while sampler is not None:
        if not _own(sampler) or type(sampler).__name__ not in _SAMPLERS:
            return False
        sampler = sampler.child_sampler
    return True


def _own(thing: Any) -> bool:
    """Return whether a thing's class is MindSpore's own, and not the program's."""
    return type(thing).__module__.startswith(_PACKAGE)


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield what a pipeline was given: sources, operations, samplers."""
    for name in ("source", "per_batch_map", "batch_size_func", "predicate", "sampler"):
        part = getattr(dataset, name, None)
        if part is not None:
            yield part
    yield from getattr(dataset, "operations", None) or ()
    for child in getattr(dataset, "children", ()):
        yield from _parts(child)


class Parts:
    """The contents of the program's own sources and transforms, such as random generators."""

    def __init__(self, dataset: Any) -> None:
        """Find the parts."""
        self._own = [p for p in _parts(dataset) if hasattr(p, "__dict__") and not _own(p)]

    def now(self) -> bytes:
        """Return the contents of the parts, without large attributes, which are the data itself."""
        room = [_MOST_BYTES]
        held = [_callbacks.attributes(p, lambda text: None, room, _MOST_OF_ONE) for p in self._own]
        return pickle.dumps(held, pickle.HIGHEST_PROTOCOL)

    def put_back(self, kept: bytes) -> None:
        """Give the parts the contents that now() has returned."""
        for part, held in zip(self._own, pickle.loads(kept)):
            _callbacks.give_back(part, held)
