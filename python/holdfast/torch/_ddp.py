"""Give every DistributedDataParallel one bucket layout, in every process, from the first step on.

By itself, DDP forms its buckets anew in the second step, in the order in which gradients became
ready, and makes two broadcasts to agree on them. A process that joins later would do that alone. So
a layout that follows from the parameters alone, the same on all ranks, is made final at once, by
DDP's own private calls; the two broadcasts are answered locally. Bits do not depend on the layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast._errors import UserError
from holdfast._say import say
from holdfast.torch import _private
from holdfast.torch._engine import Engine
from holdfast.torch._group import HoldfastGroup


def find(model: torch.nn.Module) -> list[DistributedDataParallel]:
    """Return the DDP modules in `model`, including `model` itself."""
    return [m for m in model.modules() if isinstance(m, DistributedDataParallel)]


def begins_with(ddps: list[Any]) -> list[tuple[bool, list[int]]]:
    """Return, for each DDP module, what its next step depends on and an image has to hold.

    First: whether DDP will share its buffers in the next forward pass. It does not after no_sync().
    Second: the parameters whose gradients lie in its buckets (gradient_as_bucket_view). DDP divides
    such a gradient by the number of ranks. Any other it copies into a bucket, multiplied by the
    inverse, which gives other bits unless the number is a power of two.
    """
    return [(bool(ddp.require_forward_param_sync), _laid(ddp)) for ddp in ddps]


def _laid(ddp: Any) -> list[int]:
    size = ddp.process_group.size()
    by_itself = bool(_private.comm_hooks(ddp))  # With a hook, DDP itself does not divide.
    if not ddp.gradient_as_bucket_view or by_itself or size & (size - 1) == 0:
        return []
    gradients = [p.grad for p in ddp.parameters()]
    return [i for i, g in enumerate(gradients) if g is not None and _private.is_view(g)]


def restore(ddps: list[Any], values: list[tuple[bool, list[int]]], engine: Engine) -> None:
    """Bring DDP modules back to what begins_with() said. Requires: gradients are restored."""
    for ddp, (shares, laid) in zip(ddps, values):
        ddp.require_forward_param_sync = shares
        parameters = list(ddp.parameters())
        if any(parameters[i].grad is not None for i in laid):
            _lay(ddp, parameters, laid, engine)


def _lay(ddp: Any, parameters: list[Any], laid: list[int], engine: Engine) -> None:
    """Move the gradients of parameters `laid` into the buckets. A backward pass finds these."""
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    with engine.echo():
        _pass_zeros(ddp)
    views = [p.grad for p in parameters]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    for i in laid:
        if gradients[i] is None:
            continue
        if views[i] is None:
            engine.seat.say_once(
                "the gradients that this step goes on with no longer lie in the buckets of "
                "DistributedDataParallel(gradient_as_bucket_view=True), which rounds the next ones "
                "otherwise: for equal bits, drop them in each step by zero_grad()"
            )
            return
        parameters[i].grad = views[i].copy_(gradients[i])


def settle(ddp: Any, engine: Engine) -> None:
    """Make the bucket layout of a DDP module final. Requires: no backward pass yet."""
    if not isinstance(ddp.process_group, HoldfastGroup):
        raise UserError(
            "DistributedDataParallel uses another process group than holdfast's; call hf.init() in "
            "place of dist.init_process_group and pass no other group"
        )
    if _private.has_made_steps(ddp):
        raise UserError(
            "DistributedDataParallel has made steps already; make hf.State before the first"
        )
    _see_that_none_is_sparse(ddp.module)
    parameters = _summed(ddp)
    if ddp.static_graph:
        # A DDP module with a static graph all-reduces once which parameters were used. In a process
        # that joins later it does so when the others do not.
        ddp.process_group.answer_used_map(len(parameters))
    elif ddp.find_unused_parameters:  # DDP never changes such a layout.
        if _private.can_read_buckets(ddp):
            engine.buckets.expect(_private.bucket_sizes(ddp))
        return
    lacks = _private.lacks_to_settle(ddp)
    if lacks:
        say(
            f"this torch ({torch.__version__}) has no Reducer.{lacks}: a replacement may have "
            "other buckets than the rest, which is an error then; "
            "DistributedDataParallel(find_unused_parameters=True) avoids it"
        )
        return
    _see_that_none_was_frozen(ddp, parameters)
    _force(ddp, engine, parameters)


def _see_that_none_is_sparse(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        is_embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise UserError(
                f"`{name}` has sparse gradients, whose sums by DistributedDataParallel State can "
                f"not make again; make it {type(module).__name__}(..., sparse=False)"
            )


def _see_that_none_was_frozen(ddp: Any, parameters: list[torch.Tensor]) -> None:
    now, then = sum(p.numel() for p in parameters), sum(_private.bucket_sizes(ddp))
    if now != then:
        what = "frozen" if now < then else "unfrozen"
        raise UserError(
            f"parameters were {what} (requires_grad) after DistributedDataParallel was made: it "
            f"sums the gradients of {then} values, and {now} have one now; set requires_grad first"
        )


def _force(ddp: Any, engine: Engine, parameters: list[torch.Tensor]) -> None:
    # Gradients come in about the reverse order of parameters.
    buckets = _private.bucket_plan(ddp, parameters[::-1])
    order = [[len(parameters) - 1 - i for i in bucket] for bucket in buckets]
    indices = [i for bucket in order for i in bucket] + [len(order)]
    with engine.echo(
        torch.tensor(indices, dtype=torch.int32),
        torch.tensor([len(bucket) for bucket in order], dtype=torch.int32),
    ):
        rebuilt = _private.rebuild_buckets(ddp)
        left = len(engine.armed)
    wanted = [sum(parameters[i].numel() for i in bucket) for bucket in order]
    if not rebuilt or left or _private.bucket_sizes(ddp) != wanted:
        raise UserError(
            "the buckets of DistributedDataParallel could not be fixed; use "
            "find_unused_parameters=True, and report this with your torch version"
        )
    _private.note_rebuilt(ddp)
    engine.buckets.expect(wanted)


def _summed(ddp: Any) -> list[torch.Tensor]:
    """Return the parameters that DDP's reducer has, in its order."""
    found = {  # DDP looks for `.x`, so it ignores no `x` of the outermost module.
        id(parameter): parameter
        for prefix, module in ddp.module.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad and f"{prefix}.{name}" not in ddp.parameters_to_ignore
    }
    return list(found.values())


def rehearse(ddp: Any, engine: Engine) -> None:
    """Make a backward pass of zeros, whose sums are answered locally, and drop its gradients.

    A waiting spare does this, so that a recovery does not pay for the memory of buckets and
    gradients and for first calls. Requires: settle(), an echo, no session. No pass is made if the
    program could notice it: by a gradient, a hook, a reducer that learns, or no_sync().
    """
    if not ddp.require_backward_grad_sync:
        return
    engine.rehearsing = True
    try:
        passed = _pass_zeros(ddp)
    finally:
        engine.rehearsing = False
    if not passed:
        return
    for parameter in _summed(ddp):
        parameter.grad = None


def _pass_zeros(ddp: Any) -> bool:
    """Make a backward pass of zeros with sums, even in no_sync(), if nothing would notice it."""
    parameters = _summed(ddp)
    learns = ddp.static_graph or ddp.find_unused_parameters or ddp.mixed_precision is not None
    if learns or _private.comm_hooks(ddp) or not _private.has_made_steps(ddp):
        return False
    if not all(_is_unobserved(p) for p in parameters):
        return False
    if not _private.prepare_for_a_pass(ddp):
        return False
    torch.autograd.backward(parameters, [torch.zeros_like(p) for p in parameters])
    return True


def _is_unobserved(parameter: Any) -> bool:
    is_plain = type(parameter) is torch.nn.Parameter and parameter.grad is None
    return is_plain and not _private.is_watched(parameter)
