"""Keep torch.compile away from methods of this package that torch calls from compiled code.

A compiled program may come to a collective, such as DDP's for its buffers, with the compiler on.
Dynamo would then try to compile the methods of a process group, which it can not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.torch._private import end_graphs_at, skip

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def runs_as_it_is(cls: _Class) -> _Class:
    """Have the methods of a class, and all that they call, run uncompiled."""
    for member in vars(cls).values():
        skip(getattr(member, "fget", None) or getattr(member, "__func__", member))
    return cls


def runs_between_graphs(function: _Function) -> _Function:
    """Have a function that a program's compiled code calls, and all that it calls, run uncompiled.

    The compiler ends its graph before the call, and begins another one after it.
    """
    skip(function)
    end_graphs_at(function)
    return function
