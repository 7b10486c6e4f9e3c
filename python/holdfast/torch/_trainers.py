"""Unwrap what Accelerate and Lightning Fabric wrap; keep metrics of torchmetrics.

Every wrapper class is named in this file. No library is imported for that: if a program has a
wrapper, it has loaded the library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from holdfast._errors import UserError

if TYPE_CHECKING:
    import torch

    from holdfast.torch._position import Position

_FABRICS: Final = ("lightning.fabric.wrappers", "lightning_fabric.wrappers")


def _is(thing: Any, module: str, name: str) -> bool:
    """Return whether a thing is of a class, which may be in a module that is not loaded."""
    return isinstance(thing, getattr(sys.modules.get(module), name, ()))


def _is_of_fabric(thing: Any, name: str) -> bool:
    return any(_is(thing, module, name) for module in _FABRICS)


def _is_shard(data: Any) -> bool:
    return _is(data, "accelerate.data_loader", "DataLoaderShard")


def unwrapped(thing: Any) -> Any:
    """Return what a wrapper holds; a thing that is no wrapper as it is."""
    if _is(thing, "accelerate.optimizer", "AcceleratedOptimizer"):
        return thing.optimizer
    if _is(thing, "accelerate.scheduler", "AcceleratedScheduler"):
        return thing.scheduler
    if _is(thing, "accelerate.accelerator", "Accelerator"):
        return Accumulation(thing)
    if _is_shard(thing):
        return thing.base_dataloader
    if _is(thing, "accelerate.data_loader", "DataLoaderDispatcher"):
        raise UserError(
            "this loader of Accelerate reads on rank 0 and sends the batches to the others, which "
            "a replacement can not ask for again; let each rank read its own: "
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))"
        )
    if _is_of_fabric(thing, "_FabricOptimizer"):
        return thing.optimizer
    if _is_of_fabric(thing, "_FabricDataLoader"):
        return thing._dataloader
    return thing


class Accumulation:
    """Keeps an Accelerator's count of the batches since the last update."""

    def __init__(self, accelerator: Any) -> None:
        """Hold the Accelerator."""
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        """Return the count, and whether an update follows the batch under way."""
        return {
            "step": self._accelerator.step,
            "sync_gradients": self._accelerator.gradient_state.sync_gradients,
        }

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on from there."""
        self._accelerator.step = values["step"]
        self._accelerator.gradient_state._set_sync_gradients(values["sync_gradients"])


def is_metric(module: Any) -> bool:
    """Return whether a module is a metric of torchmetrics."""
    return _is(module, "torchmetrics.metric", "Metric")


class Metric:
    """Keeps the counts of a metric of torchmetrics, whose state_dict() does not have them."""

    def __init__(self, metric: Any) -> None:
        """Hold the metric."""
        self._metric = metric

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, and the number of updates that are in them."""
        states = {name: getattr(self._metric, name) for name in self._metric._defaults}
        return {"states": states, "updates": self._metric._update_count}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in values["states"].items():
            setattr(self._metric, name, value)
        self._metric._update_count, self._metric._computed = values["updates"], None


def see_that_accumulation_is_kept(things: Iterable[Any], kept: Iterable[Any]) -> None:
    """Refuse an accumulating optimizer of Accelerate if State lacks the Accelerator that counts."""
    if any(isinstance(thing, Accumulation) for thing in kept):
        return
    for thing in things:
        if not _is(thing, "accelerate.optimizer", "AcceleratedOptimizer"):
            continue
        if thing.gradient_state.num_steps > 1:
            raise UserError(
                f"the Accelerator gathers {thing.gradient_state.num_steps} batches for an update "
                "and counts them, and State was not given it: State(..., accelerator=accelerator)"
            )


def shared_generator(data: Any) -> torch.Generator | None:
    """Return the generator that Accelerate sets alike on all ranks for the order of a pass."""
    data = getattr(data, "grouped", data)  # Of holdfast.torch._groups.
    if not _is_shard(data) or not data.rng_types:
        return None
    if others := sorted({str(getattr(t, "value", t)) for t in data.rng_types} - {"generator"}):
        raise UserError(
            f"Accelerator(rng_types=...) has {', '.join(others)}, which State sets for each step; "
            'give rng_types=["generator"], and seed all ranks alike by set_seed()'
        )
    found: torch.Generator | None = data.synchronized_generator
    return found


def told(data: Any, epoch: int, batches: Iterator[Any], at: Position) -> Iterator[Any]:
    """Yield batches, and keep Accelerate's loader informed: epoch, begin, last batch, end.

    `accumulate()` and `gather_for_metrics()` ask the loader.
    """
    if not _is_shard(data):
        yield from batches
        return
    data.set_epoch(epoch)
    data.begin()
    try:
        for batch in batches:
            data.end_of_dataloader = at.length == at.index + 1
            yield batch
    finally:
        data.end()
