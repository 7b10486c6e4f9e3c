"""Every private name of torch that this package uses, and what each is for.

torch may drop such a name in any release, so no other file touches one (test_torch_private.py looks
for them). Where one is gone, this file does without it, or raises a UserError that says which it is
and what Holdfast needs it for.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast._errors import UserError
from holdfast._tried import WHERE, order

# What it is for, in "... has no `_version` any more, by which Holdfast ...".
NAMES: Final = {
    # Tensors and parameters.
    "_version": "sees that a tensor was changed in place",
    "_is_view": "sees which gradients lie in buckets of DistributedDataParallel",
    "_backward_hooks": "sees that a program watches a gradient",
    "_post_accumulate_grad_hooks": "sees that a program watches a gradient",
    "_foreach_copy_": "copies many tensors by one call",
    "_share_fd_cpu_": "moves buckets to where all ranks see them",
    # Modules.
    "_parameters": "finds what a module itself holds",
    "_buffers": "finds what a module itself holds",
    "_non_persistent_buffers_set": "tells which buffers a module's state_dict() has",
    "_orig_mod": "finds the model that torch.compile() was given",
    "_handle": "finds the parameters that FullyShardedDataParallel has cut",
    "_params": "finds the parameters that FullyShardedDataParallel has cut",
    "_shapes": "finds the sizes of parameters that FullyShardedDataParallel has cut",
    "_is_flat_param": "knows parameters that FullyShardedDataParallel has cut",
    # Optimizers.
    "_wrapped_by_lr_sched": "sees that an optimizer has a scheduler",
    "_patch_step_function": "has torch's hooks called by the step of an optimizer of servers",
    # DistributedDataParallel, and its Reducer in C++, whose every name is private.
    "_comm_hooks": "sees that DistributedDataParallel has a communication hook",
    "_has_rebuilt_buckets": "sees that DistributedDataParallel has made a step",
    "_get_zeros_like_grad_buckets": "reads the buckets' sizes",
    "_reset_state": "makes the buckets of DistributedDataParallel final before its first step",
    "_push_all_rebuilt_params": "makes the buckets of DistributedDataParallel final",
    "_rebuild_buckets": "makes the buckets of DistributedDataParallel final",
    "_compute_bucket_assignment_by_size": "computes the buckets of DistributedDataParallel",
    "_DEFAULT_FIRST_BUCKET_BYTES": "computes the buckets of DistributedDataParallel",
    "prepare_for_forward": "makes a backward pass of zeros in a spare",
    "prepare_for_backward": "makes a backward pass of zeros in a spare",
    "_sync_module_states": "gives all ranks the parameters of rank 0",
    # Process groups.
    "_rendezvous_handlers": 'has init_process_group("holdfast") do without a store over TCP',
    "_FR_SELF_RECORDING_BACKENDS": "is left out by a recorder that knows no groups of Python",
    "_create_work_from_future": "gives torch before 2.7 an operation that outlives its Python part",
    # The compiler.
    "_dynamo": "imports the compiler before the first step",
    "_FrameAction": "keeps the compiler out of its own methods",
    "_FrameExecStrategy": "keeps the compiler out of its own methods",
    "set_code_exec_strategy": "keeps the compiler out of its own methods",
    "_torchdynamo_disable": "keeps the compiler out of its own functions",
}
# What torch calls or reads at a group: holdfast's own group has these under torch's names.
ASKED: Final = (
    "_allgather_base",
    "_device_types",
    "_end_coalescing",
    "_reduce_scatter_base",
    "_set_group_desc",
    "_set_group_name",
    "_start_coalescing",
)
_FINAL: Final = (
    "_reset_state",
    "_push_all_rebuilt_params",
    "_rebuild_buckets",
    "_get_zeros_like_grad_buckets",
)
_OF_A_PASS: Final = ("prepare_for_forward", "prepare_for_backward")


def take(thing: Any, name: str) -> Any:
    """Return what something of torch's has under a private name; UserError: it has not."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UserError(gone(name)) from None


def gone(name: str) -> str:
    """Return the sentence that a private name is gone."""
    return (
        f"torch {torch.__version__} has no `{name}` any more, by which Holdfast {NAMES[name]}; "
        f"take a version that Holdfast was tried with ({WHERE['torch']})"
    )


def missing() -> list[str]:
    """Return the names that this torch lacks, of those that can be looked for before a model is.

    Only names without which something would go wrong in silence, or not go at all.
    """
    module, tensor = torch.nn.BatchNorm1d(1), torch.empty(0)  # They draw no random numbers.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    wanted = {
        tensor: ("_version", "_is_view"),
        module.weight: ("_backward_hooks", "_post_accumulate_grad_hooks"),
        module: ("_parameters", "_buffers", "_non_persistent_buffers_set"),
        optimizer: ("_patch_step_function",),
        optimizer.step: ("_wrapped_by_lr_sched",),
        dist: ("_compute_bucket_assignment_by_size",),
        importlib.import_module("torch.distributed.rendezvous"): ("_rendezvous_handlers",),
        importlib.import_module("torch.distributed.utils"): ("_sync_module_states",),
    }
    return [name for thing, names in wanted.items() for name in names if not hasattr(thing, name)]


# ---- Tensors and parameters ---------------------------------------------------------------------


def change_counts(tensors: Iterable[Any]) -> list[int]:
    """Return for each tensor how often it was changed in place."""
    return [take(tensor, "_version") for tensor in tensors]


def is_view(tensor: Any) -> bool:
    """Return whether a tensor is a view of another."""
    return bool(take(tensor, "_is_view")())


def is_watched(parameter: Any) -> bool:
    """Return whether a hook would see a gradient of a parameter."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(take(parameter, kind) for kind in kinds)


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors into others."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources):
        target.copy_(source)


def can_share() -> bool:
    """Return whether torch can move a storage into a file. If not, sums are made by copies."""
    return hasattr(torch.UntypedStorage, "_share_fd_cpu_")


def share(storage: torch.UntypedStorage) -> int:
    """Have torch move a storage into a file of its own in /dev/shm; return the file."""
    file: int = take(storage, "_share_fd_cpu_")()[0]
    return file


# ---- Modules ------------------------------------------------------------------------------------


def own_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters that a module itself holds, some of them None."""
    found: dict[str, Any] = take(module, "_parameters")
    return found


def own_buffers(module: Any) -> dict[str, Any]:
    """Return the buffers that a module itself holds, some of them None."""
    found: dict[str, Any] = take(module, "_buffers")
    return found


def transient_buffers(module: Any) -> set[str]:
    """Return the names of the own buffers that are not in the module's state_dict()."""
    found: set[str] = take(module, "_non_persistent_buffers_set")
    return found


def compiled_from(model: Any) -> Any:
    """Return what torch.compile() was given; None: `model` is not made by it."""
    is_compiled = type(model).__name__ == "OptimizedModule"
    return take(model, "_orig_mod") if is_compiled else None


def cut_parameters(module: Any) -> list[tuple[Any, torch.Size]]:
    """Return the parameters that FullyShardedDataParallel has cut here, with their full shapes."""
    flat = getattr(getattr(module, "_handle", None), "flat_param", None)
    return list(zip(getattr(flat, "_params", None) or (), getattr(flat, "_shapes", ())))


def is_flat(parameter: Any) -> bool:
    """Return whether FullyShardedDataParallel has put parameters together to this one."""
    return bool(getattr(parameter, "_is_flat_param", False))


# ---- Optimizers ---------------------------------------------------------------------------------


def has_scheduler(optimizer: Any) -> bool:
    """Return whether a scheduler was made for an optimizer."""
    return bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))


def patch_step(optimizer: Any) -> None:
    """Have the step() of an optimizer whose class was replaced call torch's hooks."""
    take(optimizer, "_patch_step_function")()


# ---- DistributedDataParallel --------------------------------------------------------------------


def comm_hooks(ddp: Any) -> list[tuple[Any, Any]]:
    """Return the communication hooks of a DDP module, each with its state."""
    found: list[tuple[Any, Any]] = take(ddp, "_comm_hooks")
    return found


def has_made_steps(ddp: Any) -> bool:
    """Return whether the buckets of a DDP module are final."""
    return bool(take(ddp, "_has_rebuilt_buckets"))


def bucket_sizes(ddp: Any) -> list[int]:
    """Return how many elements each bucket has."""
    buckets = take(ddp.reducer, "_get_zeros_like_grad_buckets")()
    return [bucket.buffer().numel() for bucket in buckets]


def can_read_buckets(ddp: Any) -> bool:
    """Return whether bucket_sizes() can be had."""
    return hasattr(ddp.reducer, "_get_zeros_like_grad_buckets")


def lacks_to_settle(ddp: Any) -> str | None:
    """Return what its reducer lacks to make the buckets final; None: nothing."""
    return next((name for name in _FINAL if not hasattr(ddp.reducer, name)), None)


def bucket_plan(ddp: Any, parameters: list[Tensor]) -> list[list[int]]:
    """Return DDP's buckets for parameters in the order of their gradients, as positions there."""
    limits = [take(dist, "_DEFAULT_FIRST_BUCKET_BYTES"), ddp.bucket_bytes_cap]
    compute = take(dist, "_compute_bucket_assignment_by_size")
    buckets: list[list[int]] = compute(parameters, limits, [False] * len(parameters))[0]
    return buckets


def rebuild_buckets(ddp: Any) -> bool:
    """Have the reducer form its buckets anew, which makes two broadcasts; return whether it did."""
    take(ddp.reducer, "_reset_state")()
    take(ddp.reducer, "_push_all_rebuilt_params")()
    return bool(take(ddp.reducer, "_rebuild_buckets")())


def note_rebuilt(ddp: Any) -> None:
    """Tell a DDP module that its buckets are final."""
    ddp._has_rebuilt_buckets = True


def prepare_for_a_pass(ddp: Any) -> bool:
    """Have the reducer expect a backward pass of all parameters; return whether it can."""
    if not all(hasattr(ddp.reducer, name) for name in _OF_A_PASS):
        return False
    ddp.reducer.prepare_for_forward()
    ddp.reducer.prepare_for_backward([])
    return True


def equalise(ddp: Any) -> None:
    """Give all ranks the parameters and buffers of rank 0, as DDP's constructor does."""
    take(importlib.import_module("torch.distributed.utils"), "_sync_module_states")(
        module=ddp.module,
        process_group=ddp.process_group,
        broadcast_bucket_size=250 * 1024 * 1024,
        src=0,
        params_and_buffers_to_ignore=ddp.parameters_to_ignore,
        broadcast_buffers=True,
    )


# ---- Process groups -----------------------------------------------------------------------------


def rendezvous_handlers() -> dict[str, Any]:
    """Return what init_process_group asks for ranks, by the scheme of its address."""
    # torch.distributed.rendezvous is a function: the module has to be imported by name.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Any] = take(module, "_rendezvous_handlers")
    return handlers


def keep_from_recorder(backend: str) -> None:
    """Have torch 2.15's flight recorder leave groups of a backend alone: it fails at ours."""
    backends = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if backends is not None:
        backends.add(backend)


def forgets_works() -> bool:
    """Return whether torch lets go of the Python part of what a group gives to C++. 2.7 does not.

    What C++ then waits for is never complete.
    """
    return order(torch.__version__) < (2, 7)


def work_of(future: Any) -> Any:
    """Return an operation of C++'s that is complete when a future is."""
    return take(importlib.import_module("torch._C._distributed_c10d"), "_create_work_from_future")(
        future
    )


# ---- The compiler -------------------------------------------------------------------------------


def import_compiler() -> None:
    """Import torch's compiler. Where skip() can not be, keep it out of this package's files."""
    importlib.import_module("torch._dynamo")
    if not can_skip():
        importlib.import_module("torch._dynamo.trace_rules").add("holdfast")


def can_skip() -> bool:
    """Return whether skip() can be had. It can not before torch 2.7."""
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    return all(hasattr(_compiler_in_c(), name) for name in names)


def _compiler_in_c() -> Any:
    return getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def skip(function: Any) -> None:
    """Have the compiler run a function, and all that it calls, as it is.

    This marks its code as torch.compiler.disable() does. A call of disable() itself would import
    the compiler, which takes seconds and 100 MB, into programs that do not use it.
    """
    if isinstance(function, types.FunctionType) and can_skip():
        compiler = _compiler_in_c()
        action = compiler._FrameAction.SKIP
        strategy = compiler._FrameExecStrategy(action, action)
        compiler.set_code_exec_strategy(function.__code__, strategy)


def end_graphs_at(function: Any) -> None:
    """Have the compiler end its graph before a call of a function, and begin another after it."""
    function._torchdynamo_disable = True
