"""Keep what a LightningModule has logged in an epoch so far, which Lightning's checkpoints lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from holdfast._errors import UserError

_ABOUT: Final = (  # How a value was logged.
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)
_VALUES: Final = ("value", "cumulated_batch_size", "has_reset", "_forward_cache", "_computed")
_OF_SYNC: Final = ("_should", "_op", "rank_zero_only")


class Logged:
    """The values of one _ResultCollection. Not thread-safe."""

    def __init__(self, results: Any, module: Any, reduce: Callable[..., Any]) -> None:
        """Hold a collection.

        `module`: whose metrics may be logged. `reduce`: the strategy's, for sync_dist=True.
        """
        self._results = results
        self._module = module
        self._reduce = reduce

    def state_dict(self) -> dict[str, Any]:
        """Return all entries as plain values."""
        return {key: self._entry(key, metric) for key, metric in self._results.items()}

    def _entry(self, key: str, metric: Any) -> dict[str, Any]:
        meta = metric.meta
        if meta.sync.group is not None:
            raise UserError(
                f"self.log({meta.name!r}, sync_dist_group=...) can not be kept; leave the group out"
            )
        values = {name: _detached(getattr(metric, name, None)) for name in _VALUES}
        if not metric.is_tensor:
            values["value"] = self._path_of(meta.name, metric.value)
        return {
            "about": {name: getattr(meta, name) for name in _ABOUT},
            "reduce": meta.reduce_fx.__name__,
            "sync": {name: getattr(meta.sync, name) for name in _OF_SYNC},
            "is_tensor": metric.is_tensor,
            "values": values,
            "updates": metric._update_count,
        }

    def _path_of(self, name: str, metric: Any) -> str:
        for path, module in self._module.named_modules():
            if module is metric:
                return str(path)
        raise UserError(
            f"self.log({name!r}, metric) has a metric that is no part of the LightningModule, so a "
            "replacement would not find it: make it an attribute of the module"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the collection what it was."""
        made = {key: self._made(key, entry) for key, entry in state.items()}
        dict.clear(self._results)
        dict.update(self._results, made)
        self._results.batch = self._results.batch_size = self._results.dataloader_idx = None

    def _made(self, key: str, entry: dict[str, Any]) -> Any:
        metric = self._results.get(key)
        if metric is None:
            metric = self._new(entry)
        for name, value in entry["values"].items():
            if name == "cumulated_batch_size" and value is None:
                continue
            setattr(metric, name, value.clone() if isinstance(value, torch.Tensor) else value)
        if not entry["is_tensor"]:
            metric.value = self._module.get_submodule(entry["values"]["value"])
        metric._update_count = entry["updates"]
        return metric

    def _new(self, entry: dict[str, Any]) -> Any:
        library = __import__(type(self._results).__module__, fromlist=["_Metadata"])
        reduce_fx = getattr(torch, entry["reduce"])
        meta = library._Metadata(reduce_fx=reduce_fx, **entry["about"])
        sync = dict(entry["sync"])
        meta.sync = library._Sync(fn=self._reduce, **sync)
        return library._ResultMetric(meta, entry["is_tensor"])


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
