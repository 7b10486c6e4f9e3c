"""Say whether a data pipeline may skip to a step at its source, without making what comes before.

MindSpore can push a skip down to the source (`fast_recovery`): milliseconds, where making and
dropping all former batches takes as long as the training's data took. But what a random operation
would have drawn is then not drawn, and the data are others than those of the undisturbed run. So it
is used where everything in the pipeline is known to draw nothing; what is not known is replayed.
For that, what the program's own sources and transforms hold, such as a generator of random numbers,
begins as it was when the call of Model.train began.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

from holdfast.mindspore import _callbacks

_MOST_BYTES: Final = 64 << 10  # Of what parts of a pipeline hold: each step carries it along.
_MOST_OF_ONE: Final = 8 << 10
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
# In their order, or drawn from the seed and the epoch alone.
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

# Those of MindSpore's own that run in Python, or have what comes after them run there.
_IN_PYTHON: Final = frozenset({"RandomApply", "RandomChoice", "RandomOrder", "ToPIL"})


def is_sharded(dataset: Any) -> bool:
    """Return whether each rank reads a part of its own, which one seed for all has drawn."""
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
        # A callback is told of steps, and may do what it likes.
        return known and not dataset.callbacks and draws_nothing(dataset.children[0])
    sampler = getattr(dataset, "sampler", None)
    return kind in _SOURCES and not dataset.children and _is_known(sampler)


def is_native(dataset: Any) -> bool:
    """Return whether no Python runs in a pipeline, which might draw what the program draws."""
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
    """Return whether a sampler gives the same, whatever came before.

    One of the program's own, also where MindSpore has put one of its own around it, draws what it
    likes.
    """
    while sampler is not None:
        if not _own(sampler) or type(sampler).__name__ not in _SAMPLERS:
            return False
        sampler = sampler.child_sampler
    return True


def _own(thing: Any) -> bool:
    """Return whether something is of a class of MindSpore's, and not of one derived from it."""
    return type(thing).__module__.startswith(_PACKAGE)


def _parts(dataset: Any) -> Iterator[Any]:
    """Give what a program has put into a pipeline: sources, operations, samplers."""
    for name in ("source", "per_batch_map", "batch_size_func", "predicate", "sampler"):
        part = getattr(dataset, name, None)
        if part is not None:
            yield part
    yield from getattr(dataset, "operations", None) or ()
    for child in getattr(dataset, "children", ()):
        yield from _parts(child)


class Parts:
    """What the program's own sources and transforms of a pipeline hold, such as a generator."""

    def __init__(self, dataset: Any) -> None:
        """Look which there are."""
        self._own = [p for p in _parts(dataset) if hasattr(p, "__dict__") and not _own(p)]

    def now(self) -> bytes:
        """Return what they hold; large things are the data, and left out."""
        room = [_MOST_BYTES]
        held = [_callbacks.attributes(p, lambda text: None, room, _MOST_OF_ONE) for p in self._own]
        return pickle.dumps(held, pickle.HIGHEST_PROTOCOL)

    def put_back(self, kept: bytes) -> None:
        """Have them hold what now() has returned."""
        for part, held in zip(self._own, pickle.loads(kept)):
            _callbacks.give_back(part, held)
