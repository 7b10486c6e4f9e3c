"""The c10d backend "holdfast": a process group that lives on, as a new generation, after a fault.

A collective never fails inside a step: one that a fault cuts short completes with an echo, the
result as if every rank had sent what this one sent, and the step will be void. All sums are in rank
order, ((r0 + r1) + r2) + ..., so their bits depend neither on buckets nor on timing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from holdfast import _core
from holdfast._core import lib
from holdfast._errors import UserError
from holdfast.torch._engine import Engine, Phase
from holdfast.torch._work import Done, Started

_SMALL: Final = 1 << 16  # Bytes up to which a float operand is kept for its exact echo.

_DTYPES: Final[dict[torch.dtype, int]] = {
    torch.float32: _core.DType.FLOAT32,
    torch.float64: _core.DType.FLOAT64,
    torch.int32: _core.DType.INT32,
    torch.int64: _core.DType.INT64,
    torch.float16: _core.DType.FLOAT16,
    torch.bfloat16: _core.DType.BFLOAT16,
    torch.int8: _core.DType.INT8,
    torch.uint8: _core.DType.UINT8,
    torch.int16: _core.DType.INT16,
    torch.bool: _core.DType.BOOL,
}
_KIND: Final[Any] = ReduceOp.RedOpType
_OPS: Final[dict[Any, int]] = {
    _KIND.SUM: _core.Op.SUM,
    _KIND.PRODUCT: _core.Op.PRODUCT,
    _KIND.MIN: _core.Op.MIN,
    _KIND.MAX: _core.Op.MAX,
    _KIND.BAND: _core.Op.AND,
    _KIND.BOR: _core.Op.OR,
    _KIND.BXOR: _core.Op.XOR,
    _KIND.AVG: _core.Op.AVERAGE,
}
_BITWISE: Final = (_core.Op.AND, _core.Op.OR, _core.Op.XOR)


def _dense(tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy whose bytes lie one after another."""
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


def _operation(op: Any) -> tuple[Any, float | Tensor | None]:
    if isinstance(op, _KIND):
        return op, None
    kind, factor = op.__getstate__()
    return kind, factor


def _fold(kind: Any, parts: Sequence[Tensor]) -> Tensor:
    """Combine in rank order."""
    combine: dict[Any, Any] = {
        _KIND.SUM: torch.add,
        _KIND.AVG: torch.add,
        _KIND.PRODUCT: torch.mul,
        _KIND.MIN: torch.minimum,
        _KIND.MAX: torch.maximum,
        _KIND.BAND: torch.bitwise_and,
        _KIND.BOR: torch.bitwise_or,
        _KIND.BXOR: torch.bitwise_xor,
    }
    if kind not in combine:
        raise UserError(f"the holdfast backend has no reduction {kind}")
    result = functools.reduce(combine[kind], parts)
    return result / len(parts) if kind == _KIND.AVG else result


_Base: Any = dist.ProcessGroup  # Its stubs describe overloads that torch itself never calls.


class HoldfastGroup(_Base):  # type: ignore[misc]
    """Some ranks of the job, through all generations."""

    def __init__(self, engine: Engine, rank: int, size: int, name: str, ranks: list[int]) -> None:
        """`ranks`: of the job, in the group's order."""
        super().__init__(rank, size)
        self._engine = engine
        self._own_rank = rank
        self._size = size
        self.label = label_of(name)
        self._name = name
        self._purpose = "undefined"
        self._ranks = ranks
        self._handle = 0
        self._opened: list[_core.Group] = []
        self._used_map = 0  # Elements of the all-reduce that is answered locally, once.
        engine.groups.add(self)

    # ---- Who answers ----------------------------------------------------------------------------

    def forget(self) -> None:
        """Find out anew who answers."""
        self._handle = 0

    def answer_used_map(self, elements: int) -> None:
        """Answer the next int32 all-reduce of so many elements locally."""
        self._used_map = elements

    def _group(self) -> int:
        """Return the hf_group*, 0 for an echo."""
        engine = self._engine
        if engine.echoing or engine.marked:
            return 0
        if self._handle:
            return self._handle
        if engine.phase is Phase.CATCHING_UP:
            return 0
        if engine.phase is Phase.EARLY:
            if not engine.first_start:
                _tell_of_echo(engine)
                return 0
            opened = engine.worker.early_group(self._ranks, f"early-{self.label}")
        else:
            if engine.session is None:
                raise UserError("the training of this rank has ended; nothing can be exchanged now")
            if len(self._ranks) == engine.world_size and self.label == "world":
                self._handle = engine.session.world.handle
                return self._handle
            opened = engine.session.group(self._ranks, self.label)
        self._opened.append(opened)  # Kept until the end; others may still be using it.
        self._handle = opened.handle
        return self._handle

    def rank(self) -> int:
        """Return this process's rank in the group; a spare waits for it."""
        if len(self._ranks) == self._engine.world_size and not self._engine.creating:
            self._own_rank = self._ranks.index(self._engine.place.rank)
        return self._own_rank

    def getRank(self) -> int:  # noqa: N802
        """Return the rank if it is known, else 0: what DDP puts into its log."""
        return self.rank() if self._engine.place_known else self._own_rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._size

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name under which it was registered."""
        return "holdfast"

    def name(self) -> str:
        """Return the name under which it was registered."""
        return "holdfast"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def group_name(self) -> str:
        """The name in torch's registry: what functional collectives go by."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """What torch says the group is for."""
        return self._purpose

    def _set_group_desc(self, purpose: str) -> None:
        self._purpose = purpose

    def shutdown(self) -> None:
        """Let go; the whole group's end is the end of the job."""
        if self.label == "world":
            self._engine.end()

    def abort(self) -> None:
        """Do nothing: the runtime ends what has to be ended."""

    def set_timeout(self, timeout: Any) -> None:
        """Do nothing: there are no timeouts here, faults are detected."""

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Done:
        return Done([])

    # ---- Reductions -----------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None, timeout: Any = None) -> Done:
        """Reduce in place."""
        op = ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        for tensor in tensors:
            self._reduce(tensor, op)
        return Done(tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Done:
        """Reduce each in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Done:
        """Reduce into rank root; the others' tensors stay as they are."""
        result = tensors[0].clone()
        self._reduce(result, opts.reduceOp)
        if self.rank() == opts.rootRank:
            tensors[0].copy_(result)
        return Done(tensors)

    def _reduce(self, tensor: Tensor, op: Any) -> None:
        if tensor.numel() == 0:
            return
        kind, factor = _operation(op)
        if factor is not None:
            tensor.mul_(factor)
            kind = _KIND.SUM
        if tensor.is_complex():
            if kind not in (_KIND.SUM, _KIND.AVG):
                raise UserError(f"complex numbers have no {kind}")
            tensor = torch.view_as_real(tensor)
        dense = _dense(tensor)
        code, operation = _DTYPES.get(dense.dtype), _OPS.get(kind)
        self._check(dense, kind, operation)
        if self._used_map and dense.dtype is torch.int32 and dense.numel() == self._used_map:
            self._used_map = 0
            return
        if code is None or operation is None:
            result = _fold(kind, self._all_parts(dense))
            tensor.copy_(result)
            return
        group = self._group()
        if not group:
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
    def _check(tensor: Tensor, kind: Any, operation: int | None) -> None:
        if operation in _BITWISE and tensor.is_floating_point():
            raise UserError(f"{kind} is for whole numbers, not for {tensor.dtype}")
        if kind == _KIND.AVG and not tensor.is_floating_point():
            raise UserError(f"an average is for floating-point numbers, not for {tensor.dtype}")

    @staticmethod
    def _keep(tensor: Tensor) -> Tensor | None:
        if tensor.is_floating_point() and tensor.nbytes > _SMALL:
            return None  # A copy would cost more than it is worth: see _echo().
        return tensor.clone()

    def _echo(self, out: Tensor, mine: Tensor | None, kind: Any) -> None:
        """Fill `out` as if every rank had sent `mine`.

        None: with whatever `out` holds, a sum or this rank's own part by part, made finite.
        """
        if mine is None:
            torch.nan_to_num_(out, 0.0, 0.0, 0.0)
        else:
            out.copy_(_fold(kind, [mine] * self._size))

    def _all_parts(self, tensor: Tensor) -> list[Tensor]:
        everyone = torch.empty((self._size, tensor.numel()), dtype=tensor.dtype)
        self._gather(tensor, everyone)
        return [part.view(tensor.shape) for part in everyone]

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        """Reduce `input` (size x output) and keep this rank's block."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        kind, factor = _operation(op)
        source = _dense(input)
        if source.numel() != output.numel() * self._size:
            raise UserError(
                f"reduce_scatter needs an input of {self._size} x {output.numel()} elements, "
                f"got {source.numel()}"
            )
        if factor is not None:
            source, kind = source * factor, _KIND.SUM
        if source.is_complex():
            source, output = torch.view_as_real(source), torch.view_as_real(output)
        code, operation = _DTYPES.get(source.dtype), _OPS.get(kind)
        self._check(source, kind, operation)
        if output.numel() == 0:
            return Done([output])
        group = self._group()
        own = source.view(self._size, -1)[self.rank()].view(output.shape)
        if not group:
            self._echo(output, own, kind)
        elif code is None or operation is None:
            parts = self._all_parts(source)
            block = _fold(kind, parts).view(self._size, -1)[self.rank()]
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
        return Done([output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Done:
        """Reduce a list of blocks and keep this rank's."""
        for output, blocks in zip(outputs, inputs):
            flat = torch.cat([_dense(block).reshape(-1) for block in blocks])
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
        """Copy from rank root to all."""
        root = opts if isinstance(opts, int) else opts.rootRank
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        for tensor in tensors:
            self._broadcast(tensor, root)
        return Done(tensors)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        if self._engine.echoing and self._engine.armed:
            tensor.copy_(self._engine.armed.popleft())
            return
        group = self._group()
        if not group or tensor.numel() == 0:
            return
        dense = _dense(tensor)
        keep = self._keep(dense)
        status = lib.hf_broadcast(group, dense.data_ptr(), dense.nbytes, root, None)
        if status:
            self._engine.cut_short(status)
            if keep is None:
                self._echo(dense, None, None)
            else:
                dense.copy_(keep)
        if dense is not tensor:
            tensor.copy_(dense)

    def _gather(self, mine: Tensor, everyone: Tensor) -> None:
        """Fill the rows of `everyone`."""
        rows = everyone.view(self._size, -1)
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
        mine = _dense(input)
        if output.numel() != mine.numel() * self._size:
            raise UserError(
                f"all_gather needs an output of {self._size} x {mine.numel()} elements, "
                f"got {output.numel()}"
            )
        if _overlap(mine, output):
            mine = mine.clone()
        dense = output if output.is_contiguous() else torch.empty_like(output)
        self._gather(mine, _dense(dense))
        if dense is not output:
            output.copy_(dense)
        return Done([output])

    _allgather_base = all_gather_single

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """Fill a list of tensors with every rank's input."""
        for row, tensor in zip(outputs, inputs):
            mine = _dense(tensor)
            for output, part in zip(row, self._all_parts(mine)):
                output.copy_(part.view(output.shape))
        return Done(outputs[0] if len(outputs) == 1 else outputs)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Done:
        """All-gather each input; `outputs` holds one list per rank."""
        for i, tensor in enumerate(inputs):
            for row, part in zip(outputs, self._all_parts(_dense(tensor))):
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

    def _exchange(
        self, send: Tensor, send_counts: list[int], receive: Tensor, receive_counts: list[int]
    ) -> None:
        """Send blocks of so many elements to each rank; both tensors are dense."""
        group = self._group()
        status = 0
        if group:
            size, u64 = send.element_size(), _core._U64 * self._size
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

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Done:
        """Send block i to rank i; splits count in rows, none: equal blocks."""

        def counts(tensor: Tensor, splits: list[int]) -> list[int]:
            if not splits:
                return [tensor.numel() // self._size] * self._size
            row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
            return [n * row for n in splits]

        receive = output if output.is_contiguous() else torch.empty_like(output)
        self._exchange(
            _dense(input), counts(input, input_splits), receive, counts(output, output_splits)
        )
        if receive is not output:
            output.copy_(receive)
        return Done([output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Done:
        """Send inputs[i] to rank i."""
        send = torch.cat([_dense(t).reshape(-1) for t in inputs])
        counts = [t.numel() for t in outputs]
        receive = torch.empty(sum(counts), dtype=send.dtype)
        self._exchange(send, [t.numel() for t in inputs], receive, counts)
        for output, block in zip(outputs, torch.split(receive, counts)):
            output.copy_(block.view(output.shape))
        return Done(outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Done:
        """Collect every rank's input in rank root."""
        mine = _dense(inputs[0])
        at_root = self.rank() == opts.rootRank
        counts = [mine.numel() if at_root else 0] * self._size
        to = [mine.numel() if r == opts.rootRank else 0 for r in range(self._size)]
        everyone = torch.empty(sum(counts), dtype=mine.dtype)
        self._exchange(mine.reshape(-1), to, everyone, counts)
        if not at_root:
            return Done([])
        for output, part in zip(outputs[0], torch.split(everyone, counts)):
            output.copy_(part.view(output.shape))
        return Done(outputs[0])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Done:
        """Give every rank its tensor from rank root's list."""
        output = outputs[0]
        at_root = self.rank() == opts.rootRank
        n = output.numel()
        send = torch.empty(0, dtype=output.dtype)
        if at_root:
            send = torch.cat([_dense(t).reshape(-1) for t in inputs[0]])
        receive = torch.empty(n, dtype=output.dtype)
        self._exchange(
            send,
            [n if at_root else 0] * self._size,
            receive,
            [n if r == opts.rootRank else 0 for r in range(self._size)],
        )
        output.copy_(receive.view(output.shape))
        return Done(outputs)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Done:
        """Wait until every rank has come."""
        group = self._group()
        if group and (status := lib.hf_barrier(group, None)):
            self._engine.cut_short(status)
        return Done([])

    # ---- From one to one ------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Done:
        """Start to send; the n-th send to a rank meets its n-th receive, whatever the tags."""
        if not self._group():
            return Done(tensors)
        dense = _dense(tensors[0])
        work = self._native().start_send(dense.data_ptr(), dense.nbytes, to)
        return Started(self._engine, work, [dense], lambda: None)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Done:
        """Start to receive."""
        if not self._group():
            return Done(tensors)
        tensor = tensors[0]
        dense = _dense(tensor)
        work = self._native().start_receive(dense.data_ptr(), dense.nbytes, source)
        return Started(
            self._engine, work, [dense], lambda: None if dense is tensor else tensor.copy_(dense)
        )

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Done:
        """Refuse."""
        raise UserError("recv() without a source is not offered by holdfast; name the source rank")

    def _native(self) -> _core.Group:
        return _core.Group(ctypes.c_void_p(self._handle), owned=False)


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def label_of(name: str) -> str:
    """Return the name of a group as the C interface wants it."""
    if name in ("0", "default_pg", ""):
        return "world"
    clean = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    if len(clean) <= 50:
        return clean
    return clean[:20] + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


_FRAMEWORK: Final = ("torch/nn/parallel/", "torch/distributed/fsdp/", "torch/distributed/tensor/")


def _tell_of_echo(engine: Engine) -> None:
    """Say once that a user's own collective was answered locally."""
    frame = sys._getframe(1)
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _FRAMEWORK):
            return
        frame = frame.f_back  # type: ignore[assignment]
    engine.warn_once(
        "this process replaces another; what it exchanges before its State is made is answered "
        "from its own values, since the others did that long ago"
    )
