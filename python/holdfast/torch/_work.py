"""The group's operations as torch sees them: done at once, on a thread, or from rank to rank."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import types
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast import _abi, _exchange
from holdfast._errors import UserError
from holdfast._say import say
from holdfast.torch._eager import runs_as_it_is
from holdfast.torch._private import forgets_works, work_of

_Class = TypeVar("_Class", bound=type)
_Future = torch.futures.Future[Any]
_LIMIT_S = 600.0  # How long other sums wait for a callback.


@runs_as_it_is
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
        """Wait until the operation is complete."""
        self.wait()


@runs_as_it_is
class Later(Done):
    """An operation that wait() carries out."""

    def __init__(self, result: Any, operation: Callable[[], None]) -> None:
        """Hold the output tensors and the operation that fills them."""
        super().__init__(result)
        self._operation: Callable[[], None] | None = operation

    def wait(self, timeout: Any = None) -> bool:
        """Carry the operation out, if no call has yet."""
        if self._operation is not None:
            self._operation()
            self._operation = None
        return True

    def is_completed(self) -> bool:
        """Return whether the operation was carried out."""
        return self._operation is None

    def get_future(self) -> _Future:
        """Wait, and return a future that is complete."""
        self.wait()
        return super().get_future()


@runs_as_it_is
class _Result(torch.futures.Future[Any]):
    """The future of an operation that a Runner carries out."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner

    def wait(self) -> Any:
        """Wait until it is complete. On the Runner's own thread, carry it out."""
        self._runner.help(self)
        return super().wait()


@runs_as_it_is
class Promised(Done):
    """An operation that a Runner carries out."""

    def __init__(self, result: Any, runner: Runner) -> None:
        """Hold the output tensors, which are valid once the operation is complete."""
        super().__init__(result)
        self._future = _Result(runner)

    def complete(self) -> None:
        """Mark the operation as complete. Its callbacks run in here."""
        self._future.set_result(self._result)

    def fail(self, error: Exception) -> None:
        """Mark the operation as failed: it will never be complete."""
        self._future.set_exception(error)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the operation is complete."""
        self._future.wait()
        return True

    def get_future(self) -> _Future:
        """Return the future of the output tensors."""
        return self._future

    def is_completed(self) -> bool:
        """Return whether the operation is complete."""
        return self._future.done()

    def result(self) -> Any:
        """Wait, and return the output tensors."""
        self.wait()
        return self._result


def gives_lasting_works(cls: _Class) -> _Class:
    """Have the operations of a group last in C++, where torch forgets their Python part."""
    for name, member in list(vars(cls).items()) if forgets_works() else ():
        if isinstance(member, types.FunctionType) and "Done" in str(member.__annotations__):
            setattr(cls, name, _lasting(member))
    return cls


def _lasting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def given(*arguments: Any, **keywords: Any) -> Any:
        work = method(*arguments, **keywords)
        return work_of(work.get_future()) if type(work) in (Done, Promised) else work

    return given


class _Task(NamedTuple):
    """An operation for a Runner."""

    operation: Callable[[], None]
    work: Promised
    inference: bool  # The caller was in inference mode: only there can its tensors be changed.
    over: threading.Event  # The work is complete, its callbacks too, and the thread holds nothing.


class Runner:
    """Carries out operations, one after another, on a thread while the caller goes on.

    An error is kept for settle(): some that wait for an operation can not handle an exception.
    """

    def __init__(self) -> None:
        """Begin with nothing; the thread is made by the first operation."""
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last_over = threading.Event()
        self._last_over.set()
        self._done: list[threading.Event] = []  # To be set once the thread holds nothing.
        self._error: BaseException | None = None
        self._calling_since: float | None = None  # When the callback under way began.
        self._stopped = threading.Event()

    def start(self, operation: Callable[[], None], result: Any) -> Promised:
        """Start an operation.

        A callback of an earlier operation runs on the runner's only thread. An operation that it
        starts is carried out at once.
        """
        work = Promised(result, self)
        task = _Task(operation, work, torch.is_inference_mode_enabled(), threading.Event())
        if threading.current_thread() is self._thread:
            self._carry_out(task, self._done)
            return work
        if self._thread is None:
            self._queue, self._done, self._stopped = SimpleQueue(), [], threading.Event()
            mine = (self._queue, self._done)
            self._thread = threading.Thread(
                target=self._run, args=mine, name="holdfast-sums", daemon=True
            )
            self._thread.start()
            watch = (self._queue, self._stopped)
            threading.Thread(target=self._watch, args=watch, daemon=True).start()
        self._last_over = task.over
        self._queue.put(task)
        return work

    def help(self, future: _Future) -> None:
        """Carry out operations up to that of `future`, if a callback is what waits for it.

        The callback runs on the thread that carries out operations, so nobody else would do so. The
        order stays that of the calls, the same on all ranks.
        """
        while threading.current_thread() is self._thread and not future.done():
            try:
                task = self._queue.get_nowait()
            except Empty:
                return
            if task is None:  # stop() has put the end mark: leave it for later.
                self._queue.put(None)
                return
            self._carry_out(task, self._done)

    def drain(self) -> bool:
        """Wait until everything that was started is complete, callbacks included.

        Return whether there was anything to wait for. In an operation or a callback, do nothing.
        """
        last = self._last_over
        if last.is_set() or threading.current_thread() is self._thread:
            return False
        last.wait()
        return True

    def settle(self) -> None:
        """Wait as drain() does, then raise the first error."""
        self.drain()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the thread after the operations already started. start() makes a new thread."""
        if self._thread is not None:
            self._thread = None
            self._queue.put(None)
            self._stopped.set()

    def _run(self, queue: SimpleQueue[_Task | None], done: list[threading.Event]) -> None:
        while (task := queue.get()) is not None:
            self._carry_out(task, done)
            # It would keep the group and its tensors alive. torch may let go of the GIL in here. If
            # Python ends meanwhile, asking for it again ends this thread within C++, which aborts
            # the process. So who waits, and may end the program next, waits for this too.
            del task
            while done:
                done.pop().set()

    def _carry_out(self, task: _Task, done: list[threading.Event]) -> None:
        # These modes are per thread, so take the caller's inference mode over.
        with torch.inference_mode(task.inference), torch.no_grad():
            try:
                if self._error is None:
                    task.operation()
            except BaseException as error:
                self._error = error
            outer, self._calling_since = self._calling_since, time.monotonic()
            try:
                task.work.complete()
            except BaseException as error:  # Raised by a callback.
                self._error = self._error or error
            finally:
                self._calling_since = outer and time.monotonic()
                done.append(task.over)

    def _watch(self, queue: SimpleQueue[_Task | None], stopped: threading.Event) -> None:
        """Fail operations that wait behind a callback which can never end.

        Such a callback waits for another callback of a later sum, by the future of torch's then().
        It could wait for the sum's own future, which calls help().
        """
        while not stopped.wait(_LIMIT_S / 2):
            since = self._calling_since
            if since is None or time.monotonic() - since < _LIMIT_S or queue.empty():
                continue
            error = UserError(
                f"a callback of a sum has not returned for {_LIMIT_S:.0f} s, and later sums wait "
                f"behind it ({queue.qsize()}); a callback can not wait for what another callback "
                "makes of a later sum: let it wait for that sum's own work, or return a future"
            )
            say(str(error))  # A waiter in C++ does not get this text.
            self._error = self._error or error
            with contextlib.suppress(Empty):
                while True:
                    if (task := queue.get_nowait()) is not None:
                        task.work.fail(error)
                        task.over.set()


@runs_as_it_is
class Started(Later):
    """A send or a receive under way."""

    def __init__(
        self,
        cut_short: Callable[[int], None],
        work: _exchange.Work,
        tensors: list[Tensor],
        copy: Callable[[], Any],
        lose: Callable[[], None],
    ) -> None:
        """Call `copy` once the data has arrived. After a fault, call `cut_short`, then `lose`."""
        super().__init__(tensors, lambda: None)
        work.hold(tensors)  # It uses their memory, and may outlive this object.
        self._cut_short, self._work, self._copy, self._lose = cut_short, work, copy, lose
        self._status: int = _abi.Status.PENDING

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the other rank has done its part, or a fault comes."""
        while self._status == _abi.Status.PENDING:
            self._settle(self._work.poll(100))  # In slices, so that Ctrl-C is seen.
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended."""
        if self._status == _abi.Status.PENDING:
            self._settle(self._work.poll(0))
        return self._status != _abi.Status.PENDING

    def _settle(self, status: int) -> None:
        if status == _abi.Status.PENDING:
            return
        self._status = status
        if status == _abi.Status.OK:
            self._copy()
        else:
            self._cut_short(status)
            self._lose()
