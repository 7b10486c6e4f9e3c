"""The c10d backend "holdfast": a process group that lives on, as a new generation, after a fault.

A collective never fails inside a step. If a fault cuts it short, it completes with an echo, the
result as if every rank had sent what this one sent, and the step will be void. Memory for data that
only another rank sends is filled with zeros then, since the program may not have filled it. All
sums are in rank order, ((r0 + r1) + r2) + ..., so their bits depend neither on buckets nor on
timing.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from holdfast._abi import lib
from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast._vars import raw_bytes
from holdfast.torch._eager import runs_as_it_is
from holdfast.torch._early import fill
from holdfast.torch._exchanges import Exchanges
from holdfast.torch._operands import (
    DTYPES,
    KIND,
    OPS,
    as_dense,
    check,
    is_whole_average,
    operation_of,
    overlap,
    reduced,
)
from holdfast.torch._work import Done, gives_lasting_works

_SMALL: Final = 1 << 16  # Bytes up to which a float operand is kept for its exact echo.
_NOTHING: Final = torch.empty(0)
_LARGE: Final = 1 << 18  # Bytes from which a sum may run on a thread of its own.


@runs_as_it_is
@gives_lasting_works
class HoldfastGroup(Exchanges):
    """Some ranks of the job, through all generations."""

    # ---- Reductions -----------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None, timeout: Any = None) -> Done:
        """Reduce in place. Large tensors that may be complete later are reduced on a thread."""
        op = ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        if self._engine.buckets.pending:
            self._move(tensors)
        if getattr(opts, "asyncOp", False) and self._may_run_beside(tensors):

            def operation() -> None:
                for tensor in tensors:
                    self._reduce(tensor, op)

            return self.runner.start(operation, tensors)
        for tensor in tensors:
            self._reduce(tensor, op)
        return Done(tensors)

    def _move(self, tensors: list[Tensor]) -> None:
        """Move DDP's buckets into registered memory, which only the world group can use."""
        engine = self._engine
        if self.label != "world" or self._size == 1:
            return
        is_step = engine.in_step and not engine.echoing and engine.phase is Phase.LIVE
        if engine.rehearsing or (is_step and engine.session is not None):
            for tensor in tensors:
                engine.buckets.move(tensor, engine.session)

    def _may_run_beside(self, tensors: list[Tensor]) -> bool:
        """Return whether a thread saves time here, and an error may wait for the step's end."""
        engine = self._engine
        if not engine.in_step or engine.phase is not Phase.LIVE or engine.echoing:
            return False
        return self._size > 1 and sum(tensor.nbytes for tensor in tensors) >= _LARGE

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Done:
        """Reduce each in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Done:
        """Reduce into the root rank's tensor; the other ranks' stay as they are."""
        result = tensors[0].clone()
        self._reduce(result, opts.reduceOp)
        if self.rank() == opts.rootRank:
            tensors[0].copy_(result)
        return Done(tensors)

    def _reduce(self, tensor: Tensor, op: Any) -> None:
        if tensor.numel() == 0:
            return
        kind, factor = operation_of(op)
        if factor is not None:
            tensor.mul_(factor)
            kind = KIND.SUM
        if is_whole_average(tensor, kind):
            check(tensor, kind, None)
            self._reduce(tensor, KIND.SUM)
            tensor.div_(self._size, rounding_mode="trunc")
            return
        if tensor.is_complex():
            if kind not in (KIND.SUM, KIND.AVG):
                raise UserError(f"complex numbers have no {kind}")
            tensor = torch.view_as_real(tensor)
        dense = as_dense(tensor)
        code, operation = DTYPES.get(dense.dtype), OPS.get(kind)
        check(dense, kind, operation)
        if self._used_map and dense.dtype is torch.int32 and dense.numel() == self._used_map:
            self._used_map = 0
            return
        if code is None or operation is None:
            result = reduced(kind, self._all_parts(dense))
            tensor.copy_(result)
            return
        if (parts := self._early_parts("a sum", dense, kind)) is not None:
            fill(dense, raw_bytes(reduced(kind, parts)))
        elif not (group := self._group()):
            self._echo(dense, dense, kind)
        else:
            keep = self._keep(dense)
            status = lib.hf_all_reduce(
                group, dense.data_ptr(), dense.numel(), code, operation, None
            )
            if status:
                self._engine.cut_short(status)
                self._echo(dense, keep, kind)
        if dense is not tensor:
            tensor.copy_(dense)

    @staticmethod
    def _keep(tensor: Tensor) -> Tensor | None:
        if tensor.is_floating_point() and tensor.nbytes > _SMALL:
            return None  # A copy would cost more than it is worth: see _echo().
        return tensor.clone()

    def _echo(self, out: Tensor, mine: Tensor | None, kind: Any) -> None:
        """Fill `out` as if every rank had sent `mine`.

        `mine` is None: keep what `out` holds, partly sums and partly this rank's own numbers, but
        make it finite.
        """
        if mine is None:
            torch.nan_to_num_(out, 0.0, 0.0, 0.0)
        else:
            out.copy_(reduced(kind, [mine] * self._size))

    def _early_parts(
        self, what: str, mine: Tensor, kind: Any = None, limit_s: float | None = None
    ) -> list[Tensor] | None:
        """Return what each rank gave to this call before its State; None: not before State."""
        if (early := self._early()) is None:
            return None
        if kind is not None:
            what = f"{what} ({kind}, {mine.dtype})"
        mine = mine.detach()
        everyone = mine.reshape(1, *mine.shape).repeat(self._size, *[1] * mine.dim())
        if not early.gather(self.label, self._ranks, what, mine, everyone, limit_s):
            self._nobody_gives()
        return list(everyone)

    def _all_parts(self, tensor: Tensor) -> list[Tensor]:
        everyone = torch.empty((self._size, tensor.numel()), dtype=tensor.dtype)
        self._gather(tensor, everyone)
        return [part.view(tensor.shape) for part in everyone]

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        """Reduce `input` (size x output) and keep this rank's block."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        kind, factor = operation_of(op)
        source = as_dense(input)
        if source.numel() != output.numel() * self._size:
            raise UserError(
                f"reduce_scatter needs an input of {self._size} x {output.numel()} elements, "
                f"got {source.numel()}"
            )
        if factor is not None:
            source, kind = source * factor, KIND.SUM
        is_whole = is_whole_average(source, kind)
        if is_whole:
            check(source, kind, None)
            kind = KIND.SUM
        if source.is_complex():
            source, output = torch.view_as_real(source), torch.view_as_real(output)
        code, operation = DTYPES.get(source.dtype), OPS.get(kind)
        check(source, kind, operation)
        if output.numel() == 0:
            return Done([output])
        parts = self._early_parts("a sum", source, kind)
        group = 0 if parts is not None else self._group()
        own = source.view(self._size, -1)[self.rank()].view(output.shape)
        if parts is not None:
            block = reduced(kind, parts).view(self._size, -1)[self.rank()]
            output.copy_(block.view(output.shape))
        elif not group:
            self._echo(output, own, kind)
        elif code is None or operation is None:
            parts = self._all_parts(source)
            block = reduced(kind, parts).view(self._size, -1)[self.rank()]
            output.copy_(block.view(output.shape))
        else:
            mine = torch.empty(output.shape, dtype=output.dtype)  # `output` may lie in `input`.
            status = lib.hf_reduce_scatter(
                group, source.data_ptr(), mine.data_ptr(), mine.numel(), code, operation, None
            )
            if status:
                self._engine.cut_short(status)
                self._echo(output, own.clone(), kind)
            else:
                output.copy_(mine)
        if is_whole:
            output.div_(self._size, rounding_mode="trunc")
        return Done([output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Done:
        """Reduce a list of blocks and keep this rank's."""
        for output, blocks in zip(outputs, inputs):
            flat = torch.cat([as_dense(block).reshape(-1) for block in blocks])
            if all(block.numel() == output.numel() for block in blocks):
                part = (
                    output if output.is_contiguous() else torch.empty_like(flat[: output.numel()])
                )
                self.reduce_scatter_single(part, flat, opts)
                if part is not output:
                    output.copy_(part.view(output.shape))
            else:  # Blocks of different sizes.
                self._reduce(flat, opts.reduceOp)
                sizes = [block.numel() for block in blocks]
                output.copy_(torch.split(flat, sizes)[self.rank()].view(output.shape))
        return Done(outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """Reduce-scatter each."""
        for output, input in zip(outputs, inputs):
            self.reduce_scatter_single(output, input, opts)
        return Done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- Copies ---------------------------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], opts: Any, timeout: Any = None) -> Done:
        """Copy the root rank's tensors to all ranks."""
        root = opts if isinstance(opts, int) else opts.rootRank
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        for tensor in tensors:
            self._broadcast(tensor, root)
        return Done(tensors)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        if self._engine.echoing and self._engine.armed:
            tensor.copy_(self._engine.armed.popleft())
            return
        dense = as_dense(tensor)
        if dense.numel() == 0:
            return
        if (early := self._early()) is not None:
            if not early.broadcast(self.label, self._ranks[root], dense):
                self._nobody_gives()
            if dense is not tensor:
                tensor.copy_(dense)
            return
        if group := self._group():
            keep = self._keep(dense)
            status = lib.hf_broadcast(group, dense.data_ptr(), dense.nbytes, root, None)
            if status:
                self._engine.cut_short(status)
                if keep is None:
                    self._echo(dense, None, None)
                else:
                    dense.copy_(keep)
        if self._engine.marked and not self._engine.echoing and self.rank() != root:
            self._nothing_came(dense)
        if dense is not tensor:
            tensor.copy_(dense)

    def _gather(self, mine: Tensor, everyone: Tensor) -> None:
        """Fill the rows of `everyone` with what each rank gave."""
        rows = everyone.detach().view(self._size, -1)
        if (parts := self._early_parts("an all-gather", mine.reshape(-1))) is not None:
            rows.copy_(torch.stack(parts))
            return
        group = self._group()
        if group and mine.numel():
            status = lib.hf_all_gather(
                group, mine.data_ptr(), mine.nbytes, everyone.data_ptr(), None
            )
            if not status:
                return
            self._engine.cut_short(status)
        rows.copy_(mine.reshape(1, -1).clone().expand(rows.shape))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        """Fill `output` (size x input) with every rank's input."""
        mine = as_dense(input)
        if output.numel() != mine.numel() * self._size:
            raise UserError(
                f"all_gather needs an output of {self._size} x {mine.numel()} elements, "
                f"got {output.numel()}"
            )
        if overlap(mine, output):
            mine = mine.clone()
        dense = output if output.is_contiguous() else torch.empty_like(output)
        self._gather(mine, as_dense(dense))
        if dense is not output:
            output.copy_(dense)
        return Done([output])

    _allgather_base = all_gather_single

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """Fill a list of tensors with every rank's input."""
        for row, tensor in zip(outputs, inputs):
            mine = as_dense(tensor)
            for output, part in zip(row, self._all_parts(mine)):
                output.copy_(part.view(output.shape))
        return Done(outputs[0] if len(outputs) == 1 else outputs)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """All-gather each input; `outputs` holds one list per rank."""
        for i, tensor in enumerate(inputs):
            for row, part in zip(outputs, self._all_parts(as_dense(tensor))):
                row[i].copy_(part)
        return Done(outputs)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """All-gather each."""
        for output, input in zip(outputs, inputs):
            self.all_gather_single(output, input)
        return Done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def barrier(self, opts: Any = None, timeout: Any = None) -> Done:
        """Wait until every rank has come. Before State, a timeout that was given is kept."""
        given = opts.timeout.total_seconds() if opts is not None else 0.0  # Unset: negative.
        limit_s = given if given > 0 else None
        if self._early_parts("a barrier", _NOTHING, limit_s=limit_s) is not None:
            return Done([])
        group = self._group(answers=False)
        if group and (status := lib.hf_barrier(group, None)):
            self._engine.cut_short(status)
        return Done([])
