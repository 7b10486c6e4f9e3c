"""Keep a PyTorch program training through the death of its processes.

    import holdfast.torch as hf

    hf.init()                                     # in place of dist.init_process_group("gloo")
    model = DDP(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    state = hf.State(model, optimizer, scheduler=scheduler)
    for batch in state.steps(loader, epochs=3):   # replays a step that a fault broke
        ...

Start it with `holdfast run --nproc-per-node 4 train.py`. See docs/pytorch.md.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(
        "holdfast.torch needs PyTorch, which is not installed here; pip install torch==2.13.0"
    ) from error

from holdfast._errors import Error, PeerError, UserError, WorldError
from holdfast._say import say
from holdfast.job import prepare_spare
from holdfast.torch import _engine, _register
from holdfast.torch._beginning import begin_as_the_first
from holdfast.torch._served import ParameterServer
from holdfast.torch._state import State
from holdfast.torch._tables import Embedding, load_tables, save_tables

TRIED: Final = ("2.13",)

__all__ = [
    "Embedding",
    "Error",
    "ParameterServer",
    "PeerError",
    "State",
    "UserError",
    "WorldError",
    "init",
    "load_tables",
    "save_tables",
]


def init() -> None:
    """Start Holdfast. Call this instead of torch.distributed.init_process_group.

    This makes the default process group, with the backend "holdfast". A spare does not wait for its
    rank in here: its program goes on until something needs the rank, State at the latest.

    Errors: UserError if there is a process group already, or under another launcher.
    """
    if torch.distributed.is_initialized():
        raise UserError(
            "there is a process group already; call hf.init() in place of "
            "torch.distributed.init_process_group, before anything that uses it"
        )
    if ".".join(torch.__version__.split(".")[:2]) not in TRIED:
        say(f"torch {torch.__version__} was not tried; those that were: {', '.join(TRIED)}")
    engine = _engine.start(managed=True)
    _register.init_process_group(engine)
    _import_compiler()
    begin_as_the_first(engine)


def _import_compiler() -> None:
    """Import the 800 modules of torch's compiler that a process's first optimizer would import.

    The garbage collector is off meanwhile: its scans would take a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("torch._dynamo")
    finally:
        if collects:
            gc.enable()


_register.register()
prepare_spare()
