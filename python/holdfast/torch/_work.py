"""Works of the process group: complete at once, on a thread of their own, or from one to one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
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


class Promised(Done):
    """An operation that a Runner carries out."""

    def __init__(self, result: Any) -> None:
        """Hold the output tensors, which are valid when it is complete."""
        super().__init__(result)
        self._future: _Future = torch.futures.Future()

    def complete(self) -> None:
        """Say that it is."""
        self._future.set_result(self._result)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is complete."""
        self._future.wait()
        return True

    def get_future(self) -> _Future:
        """Return the future of the output tensors."""
        return self._future

    def is_completed(self) -> bool:
        """Look."""
        return self._future.done()


class Runner:
    """Carries out operations one after another while the caller goes on, as with a backward pass.

    An error of one is kept for settle(): the callers of works can not all take an exception.
    """

    def __init__(self) -> None:
        """Begin with nothing; the thread is made by the first operation."""
        self._queue: SimpleQueue[tuple[Callable[[], None], Promised]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Promised | None = None
        self._error: BaseException | None = None

    def start(self, operation: Callable[[], None], result: Any) -> Promised:
        """Start an operation."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-sums", daemon=True)
            self._thread.start()
        work = self._last = Promised(result)
        self._queue.put((operation, work))
        return work

    def drain(self) -> None:
        """Wait until everything that was started is complete. Within an operation: do nothing."""
        if self._last is not None and threading.current_thread() is not self._thread:
            self._last.wait()
            self._last = None

    def settle(self) -> None:
        """Drain, then raise the first error there was."""
        self.drain()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            operation, work = self._queue.get()
            try:
                if self._error is None:
                    operation()
            except BaseException as error:
                self._error = error
            work.complete()


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
