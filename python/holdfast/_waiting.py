"""Let Ctrl-C end a wait of the native library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_SLICE_S = 0.1
_left_behind = threading.Event()


def interruptibly(call: Callable[[], _T]) -> _T:
    """Make a native call that may wait long, so that signal handlers run meanwhile.

    For the main thread, another thread makes the call. If a signal handler raises an exception
    (KeyboardInterrupt), that thread is left behind in its wait, and the program can only end.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: list[_T] = []
    errors: list[BaseException] = []
    done = threading.Event()  # Once join() was interrupted, it takes the thread for ended.

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)
        done.set()

    helper = threading.Thread(target=run, name="holdfast-wait", daemon=True)
    helper.start()
    try:
        while not done.wait(_SLICE_S):
            pass
    except BaseException:
        if not done.is_set():
            _left_behind.set()
        raise
    if errors:
        raise errors[0]
    return result[0]


def abandoned() -> bool:
    """Return whether a call was left behind. Then nothing that it uses may be freed."""
    return _left_behind.is_set()
