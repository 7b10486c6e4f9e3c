"""Register the backend with torch, and make the groups that torch asks for."""

from __future__ import annotations

import functools
import os
import time
from typing import Any, NoReturn

import torch.distributed as dist

from holdfast._errors import LeftError, UserError
from holdfast._say import say
from holdfast._seat import Phase
from holdfast.torch import _engine
from holdfast.torch._engine import Engine
from holdfast.torch._group import HoldfastGroup
from holdfast.torch._member import label_of
from holdfast.torch._private import (
    can_skip,
    import_compiler,
    keep_from_recorder,
    rendezvous_handlers,
)
from holdfast.torch._store import OwnStore

_stores: list[OwnStore] = []  # Held: torch itself does not keep their Python parts alive.


def _store() -> OwnStore:
    _stores.append(OwnStore())
    return _stores[-1]


def _create(options: Any, _: Any) -> HoldfastGroup:
    engine = _engine.start(managed=False)
    if not can_skip():
        import_compiler()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    name = options.group_id or ""
    if label_of(name) == "world":
        _check_world(engine, options)
    group = HoldfastGroup(engine, options.group_rank, options.group_size, name, ranks)
    if engine.phase is Phase.PLAIN and engine.session is None:
        session = engine.open(private_bytes=64)
        session.join()
        try:
            session.begin_step()
        except LeftError as left:
            _start_all_again(left)
        if engine.seat.place.rank == 0 and engine.seat.world_size > 1:
            say(
                'init_process_group("holdfast") without a State: a lost process ends the others '
                "too, and all start again, as under torchrun"
            )
    return group


def _start_all_again(why: LeftError) -> NoReturn:
    """Have the launcher start all ranks again, also those whose programs have ended.

    This is for a rank that was lost after another had ended, where nothing is kept. The token in
    the log asks the launcher for it, as in _shim.sh. Without `holdfast run`, raises `why`.
    """
    token = os.environ.get("_HOLDFAST_RESTART_TOKEN")
    if token is None:
        raise why
    os.write(1, f"\n{token}\n".encode())  # The program may have replaced sys.stdout.
    time.sleep(60)  # The launcher ends this process.
    raise why


def _check_world(engine: Engine, options: Any) -> None:
    if options.group_size != engine.seat.world_size:
        raise UserError(
            f"init_process_group was told of {options.group_size} ranks, the job has "
            f"{engine.seat.world_size}; start it with "
            f"`holdfast run --nproc-per-node {options.group_size}`"
        )
    if engine.phase is Phase.PLAIN and options.group_rank != engine.seat.place.rank:
        raise UserError(
            f"init_process_group was told rank {options.group_rank}, the job gave this process "
            f"rank {engine.seat.rank}; leave `rank` out, or take it from the environment (RANK)"
        )


def register() -> None:
    """Make the backend known to torch. A second call does nothing."""
    if not hasattr(dist.Backend, "HOLDFAST"):
        dist.Backend.register_backend("holdfast", _create, extended_api=True, devices=["cpu"])
        keep_from_recorder("holdfast")
    _serve_env_rendezvous()
    _shut_down_in_time()


def _serve_env_rendezvous() -> None:
    """Let init_process_group("holdfast") find its ranks without a store over TCP."""
    handlers = rendezvous_handlers()
    usual = handlers["env"]
    if getattr(usual, "_holdfast", False):
        return
    asked: list[str] = []  # Backends of the calls under way: no argument tells.

    def ours(url: str, *arguments: Any, **keywords: Any) -> Any:
        if not asked or "holdfast" not in asked[-1]:
            return usual(url, *arguments, **keywords)
        engine = _engine.start(managed=False)
        return iter([(_store(), engine.seat.place.rank, engine.seat.place.world_size)])

    ours._holdfast = True  # type: ignore[attr-defined]
    handlers["env"] = ours
    plain = dist.init_process_group

    @functools.wraps(plain)
    def init(backend: Any = None, *arguments: Any, **keywords: Any) -> None:
        asked.append(str(backend))
        try:
            plain(backend, *arguments, **keywords)
        finally:
            asked.pop()

    dist.init_process_group = init
    dist.distributed_c10d.init_process_group = init


def _shut_down_in_time() -> None:
    """Let destroy_process_group() shut groups down. torch 2.6 does so for NCCL's groups alone."""
    plain = dist.destroy_process_group

    @functools.wraps(plain)
    def destroy(group: Any = None) -> None:
        is_all = group is None or group is dist.group.WORLD
        groups = list(_engine.engine.groups) if is_all and _engine.engine else [group]
        plain(group)
        for one in groups:
            if isinstance(one, HoldfastGroup):
                one.shutdown()

    dist.destroy_process_group = destroy
    dist.distributed_c10d.destroy_process_group = destroy


def init_process_group(engine: Engine) -> None:
    """Make the default group, without waiting for the rank of a spare."""
    engine.creating = True
    bound = engine.seat.worker.bound_rank is not None
    try:
        dist.init_process_group(
            "holdfast",
            store=_store(),
            rank=engine.seat.rank if bound or not engine.seat.waits_spare else 0,
            world_size=engine.seat.world_size,
        )
    finally:
        engine.creating = False
