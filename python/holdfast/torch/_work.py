"""Works of the process group: complete at once, or a send or receive under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast import _core
from holdfast.torch._engine import Engine

_Future = torch.futures.Future[Any]


class Done(dist.Work):
    """An operation that was complete when its call returned."""

    def __init__(self, result: Any) -> None:
        """Hold the output tensors."""
        super().__init__()
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> _Future:
        """Return a future that is complete."""
        future: _Future = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self) -> bool:
        """Say yes."""
        return True

    def is_success(self) -> bool:
        """Say yes."""
        return True

    def exception(self) -> Any:
        """There is none."""
        return None

    def result(self) -> Any:
        """Return the output tensors."""
        return self._result

    def synchronize(self) -> None:
        """Return at once."""


class Started(Done):
    """A send or a receive under way."""

    def __init__(
        self, engine: Engine, work: _core.Work, tensors: list[Tensor], copy: Callable[[], Any]
    ) -> None:
        """`copy` is called when it has arrived."""
        super().__init__(tensors)
        self._engine, self._work, self._copy = engine, work, copy
        self._status: int = _core.Status.PENDING

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the other side has done its part, or a fault."""
        while self._status == _core.Status.PENDING:
            self._settle(self._work.poll(100))  # In slices: Ctrl-C is to be seen.
        return True

    def is_completed(self) -> bool:
        """Look."""
        if self._status == _core.Status.PENDING:
            self._settle(self._work.poll(0))
        return self._status != _core.Status.PENDING

    def get_future(self) -> _Future:
        """Return a future that is complete, after waiting for it."""
        self.wait()
        return super().get_future()

    def _settle(self, status: int) -> None:
        if status == _core.Status.PENDING:
            return
        self._status = status
        if status == _core.Status.OK:
            self._copy()
        else:
            self._engine.cut_short(status)
