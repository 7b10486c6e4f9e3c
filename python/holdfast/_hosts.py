"""Where the ranks of a job are."""

from __future__ import annotations

import ctypes as c
import os
from typing import NamedTuple

from holdfast._abi import I32, CHost, check, lib
from holdfast._exchange import Group
from holdfast._waiting import interruptibly


class Host(NamedTuple):
    """A process of the job."""

    node_id: str
    host: str
    pid: int  # On its own host.


def hosts_of(worker: int, world: Group) -> list[Host]:
    """Return the process of each rank of a group, in rank order. All ranks have to call it."""
    found = (CHost * world.size)()
    check(lib.hf_hosts(worker, world.handle, found))
    return [Host(os.fsdecode(h.node_id), os.fsdecode(h.host), h.pid) for h in found]


def local_rank_of(worker: int) -> int:
    """Wait for the rank; return the place of this process among the ranks of its host."""
    rank = I32()
    interruptibly(lambda: check(lib.hf_local_rank(worker, c.byref(rank))))
    return rank.value
