"""Describe tensors and reductions to the C interface, and refuse what it can not take."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from holdfast import _abi
from holdfast._errors import UserError

DTYPES: Final[dict[torch.dtype, int]] = {
    torch.float32: _abi.DType.FLOAT32,
    torch.float64: _abi.DType.FLOAT64,
    torch.int32: _abi.DType.INT32,
    torch.int64: _abi.DType.INT64,
    torch.float16: _abi.DType.FLOAT16,
    torch.bfloat16: _abi.DType.BFLOAT16,
    torch.int8: _abi.DType.INT8,
    torch.uint8: _abi.DType.UINT8,
    torch.int16: _abi.DType.INT16,
    torch.bool: _abi.DType.BOOL,
}
KIND: Final[Any] = ReduceOp.RedOpType
_REDUCTIONS: Final[dict[Any, tuple[int, Any]]] = {  # Number in c.h; function of two tensors.
    KIND.SUM: (_abi.Op.SUM, torch.add),
    KIND.PRODUCT: (_abi.Op.PRODUCT, torch.mul),
    KIND.MIN: (_abi.Op.MIN, torch.minimum),
    KIND.MAX: (_abi.Op.MAX, torch.maximum),
    KIND.BAND: (_abi.Op.AND, torch.bitwise_and),
    KIND.BOR: (_abi.Op.OR, torch.bitwise_or),
    KIND.BXOR: (_abi.Op.XOR, torch.bitwise_xor),
    KIND.AVG: (_abi.Op.AVERAGE, torch.add),
}
OPS: Final[dict[Any, int]] = {kind: operation for kind, (operation, _) in _REDUCTIONS.items()}
_BITWISE: Final = (_abi.Op.AND, _abi.Op.OR, _abi.Op.XOR)


def as_dense(tensor: Tensor) -> Tensor:
    """Return `tensor` if it is contiguous, else a contiguous copy."""
    if tensor.device.type != "cpu":
        raise UserError(
            f"the holdfast backend exchanges CPU memory, this tensor is on {tensor.device}; "
            'register another backend for that device: "cpu:holdfast,cuda:nccl"'
        )
    if tensor.layout is not torch.strided:
        raise UserError(
            f"the holdfast backend exchanges dense tensors, this one is {tensor.layout}; "
            "use dense gradients (Embedding(sparse=False))"
        )
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def operation_of(op: Any) -> tuple[Any, float | Tensor | None]:
    """Return the kind of a reduction, and the factor to multiply tensors by before it."""
    if isinstance(op, KIND):
        return op, None
    kind, factor = op.__getstate__()
    return kind, factor


def reduced(kind: Any, parts: Sequence[Tensor]) -> Tensor:
    """Combine tensors in rank order; half precision in single precision, as the library does."""
    if kind not in _REDUCTIONS:
        raise UserError(f"the holdfast backend has no reduction {kind}")
    of = parts[0].dtype
    if of in (torch.float16, torch.bfloat16):
        parts = [part.float() for part in parts]
    result = functools.reduce(_REDUCTIONS[kind][1], parts)
    return (result / len(parts) if kind == KIND.AVG else result).to(of)


def check(tensor: Tensor, kind: Any, operation: int | None) -> None:
    """Refuse a reduction that is not defined for the tensor's type."""
    if operation in _BITWISE and tensor.is_floating_point():
        raise UserError(f"{kind} is for whole numbers, not for {tensor.dtype}")
    if kind == KIND.AVG and tensor.dtype is torch.bool:
        raise UserError(f"an average is for numbers, not for {tensor.dtype}")


def is_whole_average(tensor: Tensor, kind: Any) -> bool:
    """Return whether whole numbers are averaged, which means: divide the sum towards zero."""
    return bool(kind == KIND.AVG) and not (tensor.is_floating_point() or tensor.is_complex())


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors may share bytes."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def counts(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return the elements to or from each rank. `splits` count rows; empty: equal numbers."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise UserError(
                f"all_to_all_single gives each of {size} ranks as many rows, and {rows} can not be "
                "divided so; say how many each gets (input_split_sizes, output_split_sizes)"
            )
        return [tensor.numel() // size] * size
    if len(splits) != size or sum(splits) != rows:  # Else memory is read that is not there.
        raise UserError(
            f"all_to_all_single was given the splits {list(splits)} of {rows} rows for {size} "
            "ranks; there is one for each, and together they are the rows"
        )
    return [n * (tensor.numel() // rows if rows else 0) for n in splits]
