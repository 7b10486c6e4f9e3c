"""Collectives and messages that move blocks from rank to rank, and add up nothing."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from holdfast._abi import U64, lib
from holdfast._errors import UserError
from holdfast._exchange import Group
from holdfast.torch._eager import runs_as_it_is
from holdfast.torch._member import Member
from holdfast.torch._operands import as_dense, counts
from holdfast.torch._work import Done, Later, Started, gives_lasting_works


@runs_as_it_is
@gives_lasting_works
class Exchanges(Member):
    """The operations of a group besides reductions, broadcasts and all-gathers."""

    def _exchange(
        self, send: Tensor, send_counts: list[int], receive: Tensor, receive_counts: list[int]
    ) -> None:
        """Send each rank a block of `send_counts` elements; both tensors are dense."""
        if self._exchange_early(send, send_counts, receive, receive_counts):
            return
        group = self._group()
        status = 0
        if group:
            size, u64 = send.element_size(), U64 * self._size
            status = lib.hf_all_to_all(
                group,
                send.data_ptr(),
                u64(*(n * size for n in send_counts)),
                receive.data_ptr(),
                u64(*(n * size for n in receive_counts)),
                0,
                None,
            )
        if group and not status:
            return
        if status:
            self._engine.cut_short(status)
        mine = torch.split(send.reshape(-1), send_counts)[self.rank()]
        for block in torch.split(receive.view(-1), receive_counts):
            n = min(block.numel(), mine.numel())
            block.zero_()
            block[:n].copy_(mine[:n])

    def _exchange_early(
        self, send: Tensor, send_counts: list[int], receive: Tensor, receive_counts: list[int]
    ) -> bool:
        if (early := self._early()) is None:
            return False
        blocks = torch.split(send.reshape(-1), send_counts)
        for to, block in zip(self._ranks, blocks):
            if block.numel():
                early.send(self.label, to, block)
        for source, block in zip(self._ranks, torch.split(receive.view(-1), receive_counts)):
            if block.numel() and not early.receive(self.label, source, block)():
                self._nobody_gives()
        return True

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Done:
        """Send block i to rank i. Splits count rows; without them, blocks are equal."""
        to, of = counts(input, input_splits, self._size), counts(output, output_splits, self._size)
        receive = output if output.is_contiguous() else torch.empty_like(output)
        self._exchange(as_dense(input), to, receive, of)
        if receive is not output:
            output.copy_(receive)
        return Done([output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Done:
        """Send inputs[i] to rank i."""
        send = torch.cat([as_dense(t).reshape(-1) for t in inputs])
        of = [t.numel() for t in outputs]
        receive = torch.empty(sum(of), dtype=send.dtype)
        self._exchange(send, [t.numel() for t in inputs], receive, of)
        for output, block in zip(outputs, torch.split(receive, of)):
            output.copy_(block.view(output.shape))
        return Done(outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Done:
        """Collect every rank's input on the root rank."""
        mine = as_dense(inputs[0])
        at_root = self.rank() == opts.rootRank
        of = [mine.numel() if at_root else 0] * self._size
        to = [mine.numel() if r == opts.rootRank else 0 for r in range(self._size)]
        everyone = torch.empty(sum(of), dtype=mine.dtype)
        self._exchange(mine.reshape(-1), to, everyone, of)
        if not at_root:
            return Done([])
        for output, part in zip(outputs[0], torch.split(everyone, of)):
            output.copy_(part.view(output.shape))
        return Done(outputs[0])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Done:
        """Give every rank its tensor from the root rank's list."""
        output = outputs[0]
        at_root = self.rank() == opts.rootRank
        n = output.numel()
        send = torch.empty(0, dtype=output.dtype)
        if at_root:
            if given := [t.numel() for t in inputs[0] if t.numel() != n]:
                raise UserError(
                    f"scatter gives each rank {n} elements, as its output has; one is {given[0]}"
                )
            send = torch.cat([as_dense(t).reshape(-1) for t in inputs[0]])
        receive = torch.empty(n, dtype=output.dtype)
        self._exchange(
            send,
            [n if at_root else 0] * self._size,
            receive,
            [n if r == opts.rootRank else 0 for r in range(self._size)],
        )
        if self._engine.marked and not at_root:
            self._nothing_came(receive)
        output.copy_(receive.view(output.shape))
        return Done(outputs)

    # ---- From one to one ------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Done:
        """Start to send. The n-th send to a rank with a tag meets its n-th receive with it."""
        dense = as_dense(tensors[0])
        if (early := self._early()) is not None:
            early.send(self._tagged(tag), self._ranks[to], dense)
            return Done(tensors)
        if not self._group():
            return Done(tensors)
        work = self._native().start_send(dense.data_ptr(), dense.nbytes, to, tag)
        return Started(self._engine.cut_short, work, [dense], lambda: None, lambda: None)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Done:
        """Start to receive."""
        tensor = tensors[0]
        dense = as_dense(tensor)
        if (early := self._early()) is not None:
            take = early.receive(self._tagged(tag), self._ranks[source], dense)

            def finish() -> None:
                if not take():
                    self._nobody_gives()
                if dense is not tensor:
                    tensor.copy_(dense)

            return Later(tensors, finish)
        if not self._group():
            if self._engine.marked:
                self._nothing_came(tensor)
            return Done(tensors)
        work = self._native().start_receive(dense.data_ptr(), dense.nbytes, source, tag)
        return Started(
            self._engine.cut_short,
            work,
            [dense],
            lambda: None if dense is tensor else tensor.copy_(dense),
            lambda: self._nothing_came(tensor),
        )

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Done:
        """Refuse, since this is not offered."""
        raise UserError("recv() without a source is not offered by holdfast; name the source rank")

    def _tagged(self, tag: int) -> str:
        return f"{self.label}-tag-{tag}" if tag else self.label

    def _native(self) -> Group:
        return Group(ctypes.c_void_p(self._handle), owned=False)
