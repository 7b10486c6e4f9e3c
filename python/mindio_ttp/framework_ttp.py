"""MindIO's functions for trainers, on Holdfast: each does its work, or says why it does nothing.

MindIO has a controller in rank 0 and a processor in each rank. In Holdfast the scheduler decides,
and each process has a thread that talks to the scheduler. So there is nothing to start or to end.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mindio_ttp import controller_ttp
from mindio_ttp._registry import Handler, registry

_T = TypeVar("_T")
_MOST_RANKS = 100_000


class ReportState(enum.Enum):
    """The states that tft_report_error() takes."""

    RS_NORMAL = 0
    RS_RETRY = 1
    RS_UCE = 2
    RS_UCE_CORRUPTED = 3
    RS_HCCL_FAILED = 4
    RS_UNKNOWN = 5
    RS_INIT_FINISH = 6
    RS_PREREPAIR_FINISH = 7
    RS_STEP_FINISH = 8


class Action(enum.Enum):
    """The answers of tft_wait_next_action()."""

    RETRY = 0
    EXIT = 1


class RepairType(enum.Enum):
    """The requests that a repair handler gets from MindIO."""

    RT_SEND = 0
    RT_UCE_HIGHLEVEL = 1
    RT_UCE_LOWLEVEL = 2
    RT_RECV_REPAIR = 3
    RT_ROLLBACK = 4
    RT_LOAD_CKPT = 5
    RT_LOAD_REBUILD = 6


class OptimizerType(enum.Enum):
    """The kinds of replicas that tft_set_optimizer_replica() describes."""

    ATTENTION = 0
    MOE = 1


def _ranks(rank: int, world_size: int, lowest: int) -> None:
    if not 1 <= world_size <= _MOST_RANKS or not lowest <= rank < world_size:
        raise ValueError(
            f"rank {rank} of {world_size} is not possible: world_size is 1 to {_MOST_RANKS}, rank "
            f"{lowest} to world_size - 1"
        )


# ---- Controller and processor --------------------------------------------------------------------


def tft_init_controller(
    rank: int,
    world_size: int,
    enable_local_copy: bool,
    enable_arf: bool = False,
    enable_zit: bool = False,
) -> int:
    """Check the arguments, and start nothing: Holdfast's scheduler is the controller."""
    _ranks(rank, world_size, -1)
    if enable_zit:
        registry.say_once("enable_zit has no effect: the number of ranks does not change")
    return 0


def tft_start_controller(
    bind_ip: str, port: int, enable_tls: bool = True, tls_info: str = ""
) -> int:
    """Check the arguments, and start nothing: the scheduler serves already, at its own address."""
    if bind_ip == "0.0.0.0":
        raise ValueError("bind_ip 0.0.0.0 is refused; give the address of one interface")
    if not 1024 <= port <= 65535:
        raise ValueError(f"port {port} is not allowed; give one from 1024 to 65535")
    if enable_tls:
        registry.say_once("enable_tls has no effect: nothing listens at this address")
    return 0


def tft_init_processor(
    rank: int,
    world_size: int,
    enable_local_copy: bool,
    enable_tls: bool = True,
    tls_info: str = "",
    enable_uce: bool = True,
    enable_arf: bool = False,
    enable_zit: bool = False,
) -> int:
    """Keep the number of ranks, and start nothing: a thread of this worker is the processor."""
    _ranks(rank, world_size, 0)
    registry.world_size = world_size
    return 0


def tft_start_processor(master_ip: str, port: int, local_ip: str = "") -> int:
    """Start nothing: the worker is connected already."""
    if registry.actor is None:
        registry.say_once(
            "no Holdfast job is behind these functions in this process; start the program with "
            "`holdfast msrun`, or it is not protected"
        )
    return 0


def tft_destroy_controller() -> int:
    """End nothing: the scheduler ends with its job."""
    return 0


def tft_destroy_processor() -> int:
    """Forget what was registered."""
    registry.handlers.clear()
    registry.args = None
    return 0


# ---- What a trainer tells ------------------------------------------------------------------------


def tft_set_optimizer_replica(rank: int, replica_info: Sequence[dict[str, Any]]) -> int:
    """Keep who has replicas. Holdfast needs none: each rank's state outlives its process."""
    for info in replica_info:
        missing = {"rank_list", "replica_cnt", "replica_shift"} - set(info)
        if missing:
            raise ValueError(f"replica_info lacks {', '.join(sorted(missing))}")
    registry.replicas[rank] = list(replica_info)
    return 0


def tft_set_dp_group_info(rank: int, dp_rank_list: Sequence[int]) -> int:
    """Keep the ranks of a data-parallel group."""
    registry.groups[rank] = list(dp_rank_list)
    return 0


def tft_set_step_args(args: Any) -> int:
    """Keep the `args` that handlers get."""
    registry.args = args
    return 0


def tft_start_copy_os() -> int:
    """Do nothing: Holdfast keeps the state after each step."""
    return 0


def tft_start_updating_os(backup_step: int) -> int:
    """Note that an update has begun. The trainer needs no copy of its own."""
    registry.updating = True
    return 0


def tft_end_updating_os(step: int) -> int:
    """Note that a step, counted from 1, is done."""
    if step < 1:
        raise ValueError(f"step {step} is not possible; steps are counted from 1")
    registry.updating = False
    registry.step = step
    return 0


def tft_set_update_start_time(time: int) -> int:
    """Note when an update began."""
    registry.times[0] = time
    return 0


def tft_set_update_end_time(time: int) -> int:
    """Note when an update ended."""
    registry.times[1] = time
    return 0


def tft_report_load_ckpt_step(step: int) -> int:
    """Note the step of the checkpoint that the trainer began from."""
    registry.loaded_step = step
    return 0


# ---- Faults --------------------------------------------------------------------------------------


def tft_report_error(state: int, error_code: str = "") -> int:
    """Note what has happened to this rank, one of ReportState, for tft_wait_next_action()."""
    registry.reported = ReportState(state).value
    return 0


def tft_wait_next_action() -> int:
    """Bring this rank's state to its last step and return RETRY; EXIT if that is not possible.

    The other ranks are not stopped for it: they wait for this rank in their next collective.
    """
    reported, registry.reported = registry.reported, None
    if registry.actor is None or reported in (None, ReportState.RS_UNKNOWN.value):
        registry.repair_type = "dump"
        return Action.EXIT.value
    corrupted = reported == ReportState.RS_UCE_CORRUPTED.value
    if corrupted or not registry.actor.repair():
        registry.repair_type = "dump"
        return Action.EXIT.value
    registry.repair_type = "retry"
    return Action.RETRY.value


def tft_get_repair_step() -> int:
    """Return the number of the last step that is done. The step after it is made again."""
    return registry.step if registry.actor is None else registry.actor.step()


def tft_get_repair_type() -> str:
    """Return what tft_wait_next_action() decided: "retry" or "dump"; "unknow" before that."""
    return registry.repair_type


def tft_can_do_uce_repair(hbm_error_time: int, start_time: int = 0, end_time: int = 0) -> bool:
    """Return whether this rank can be repaired after a memory error, from its own arena."""
    return registry.actor is not None and registry.actor.can_repair()


def tft_is_reboot_node() -> bool:
    """Return whether the trainer has to treat this process as one that replaces another."""
    return registry.actor is not None and registry.actor.restarted()


def tft_get_reboot_type() -> str:
    """Return "arf", since lost processes are replaced. Hot switching is not offered."""
    return "arf"


def tft_reset_limit_step() -> int:
    """Do nothing: no step is held back."""
    return 0


def tft_pause_train(step: int) -> int:
    """Return at once: pauses (TSP) are not offered. A fault stops the other ranks by itself."""
    return 0


def tft_exception_handler(function: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap a training function: report what it raises, and call it again after a repair."""

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> _T:
        while True:
            try:
                return function(*given, **named)
            except RuntimeError as error:
                known = {"UCEError": ReportState.RS_UCE, "HCCEError": ReportState.RS_HCCL_FAILED}
                found = [state for text, state in known.items() if text in str(error)]
                tft_report_error((found or [ReportState.RS_UNKNOWN])[0].value)
                if tft_wait_next_action() == Action.EXIT.value:
                    raise
                registry.call("rollback", tft_get_repair_step(), registry.args)
            except BaseException:
                tft_report_error(ReportState.RS_UNKNOWN.value)
                raise

    return wrapper


# ---- Handlers ------------------------------------------------------------------------------------


def _register(name: str, function: Handler, context: Any) -> int:
    if not callable(function):
        raise TypeError(f"the {name} handler is no function")
    registry.handlers[name] = (function, context)
    return 0


def tft_register_save_ckpt_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(step, save_info, args, ctx), called to write the last checkpoint."""
    return _register("save_ckpt", func, ctx)


def tft_register_rename_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(step, ctx), called to give the last checkpoint its final name."""
    return _register("rename", func, ctx)


def tft_register_exit_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(ctx). It is not called: processes end with the job, and its reason is said."""
    return _register("exit", func, ctx)


def tft_register_stop_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(args, ctx). It is not called: a collective that is cut short stops a rank."""
    return _register("stop", func, ctx)


def tft_register_clean_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(is_uce, args, ctx). It is not called: a CPU has no device memory to clean."""
    return _register("clean", func, ctx)


def tft_register_repair_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(step, ...). It is not called: each rank is repaired from its own arena."""
    return _register("repair", func, ctx)


def tft_register_rollback_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(step, args, ctx); tft_exception_handler() calls it before it tries again."""
    return _register("rollback", func, ctx)


def tft_register_rebuild_group_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(fault_ranks, args, ctx). It is not called: groups form anew by themselves."""
    return _register("rebuild_group", func, ctx)


def tft_register_stream_sync_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(). It is not called: pauses (TSP) are not offered."""
    return _register("stream_sync", func, ctx)


def tft_register_decrypt_handler(func: Handler, ctx: Any = None) -> int:
    """Take func(text). It is not called: there is no key of a TLS link to decrypt."""
    return _register("decrypt", func, ctx)


def _zit(name: str) -> Callable[..., int]:
    def register(func: Handler, ctx: Any = None) -> int:
        registry.say_once(f"the {name} handler is not called: the number of ranks does not change")
        return _register(name, func, ctx)

    register.__doc__ = (
        f"Take the {name} handler. It is not called: ranks are neither cut nor added."
    )
    return register


tft_register_zit_upgrade_rollback_handler = _zit("zit_upgrade_rollback")
tft_register_zit_upgrade_repair_handler = _zit("zit_upgrade_repair")
tft_register_zit_upgrade_rebuild_handler = _zit("zit_upgrade_rebuild")
tft_register_zit_downgrade_rebuild_handler = _zit("zit_downgrade_rebuild")

# In MindIO, this module has these two as well.
tft_register_mindx_callback = controller_ttp.tft_register_mindx_callback
tft_query_high_availability_switch = controller_ttp.tft_query_high_availability_switch
