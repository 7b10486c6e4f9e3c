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

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(
        "holdfast.torch needs PyTorch, which is not installed here; pip install torch"
    ) from error

from holdfast import _tried

if _refusal := _tried.refusal("torch", torch.__version__):  # Its imports may fail.
    raise ImportError(_refusal)

from holdfast._errors import Error, PeerError, UserError, WorldError
from holdfast._say import say
from holdfast.job import prepare_spare
from holdfast.torch import _engine, _private, _register
from holdfast.torch._beginning import begin_as_the_first
from holdfast.torch._served import ParameterServer
from holdfast.torch._state import State
from holdfast.torch._tables import Embedding, load_tables, save_tables

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

    Errors: UserError if there is a process group already, under another launcher, or with a
    newer torch that lacks what Holdfast needs.
    """
    if torch.distributed.is_initialized():
        raise UserError(
            "there is a process group already; call hf.init() in place of "
            "torch.distributed.init_process_group, before anything that uses it"
        )
    _see_the_version()
    engine = _engine.start(managed=True)
    _register.init_process_group(engine)
    _import_compiler()
    begin_as_the_first(engine)


def _see_the_version() -> None:
    version, works = torch.__version__, _tried.working("torch")
    if _tried.minor(version) in works:
        return
    if gone := _private.missing():
        raise UserError(_private.gone(gone[0]))
    say(
        f"torch {version} was not tried; those that were: {', '.join(works)}. It has what Holdfast "
        "needs by name"
    )


def _import_compiler() -> None:
    """Import the 800 modules of torch's compiler that a process's first optimizer would import.

    The garbage collector is off meanwhile: its scans would take a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        _private.import_compiler()
    finally:
        if collects:
            gc.enable()


_register.register()
prepare_spare()
