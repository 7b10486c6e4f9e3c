"""Keep torch.compile away from methods of this package that torch calls from compiled code.

A compiled program may come to a collective, such as DDP's for its buffers, with the compiler on.
Dynamo would then try to compile the methods of a process group, which it can not read.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def runs_as_it_is(cls: _Class) -> _Class:
    """Have the methods of a class, and all that they call, run uncompiled.

    This marks their code as torch.compiler.disable() does. A call of disable() itself would import
    the compiler, which takes seconds and 100 MB, into programs that do not use it.
    """
    for member in vars(cls).values():
        _skip(getattr(member, "fget", None) or getattr(member, "__func__", member))
    return cls


def runs_between_graphs(function: _Function) -> _Function:
    """Have a function that a program's compiled code calls, and all that it calls, run uncompiled.

    The compiler ends its graph before the call, and begins another one after it.
    """
    _skip(function)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # As disable() does.
    return function


def _skip(function: Any) -> None:
    torch_eval: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    if not all(hasattr(torch_eval, name) for name in names):
        return  # Pinned by test_torch_compile.py for each version that was tried.
    skip = torch_eval._FrameAction.SKIP
    strategy = torch_eval._FrameExecStrategy(skip, skip)
    if isinstance(function, types.FunctionType):
        torch_eval.set_code_exec_strategy(function.__code__, strategy)
