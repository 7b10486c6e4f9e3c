"""Export a snapshot as the command line says."""

from __future__ import annotations

import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast._errors import Error, UserError
from holdfast._snapshot_files import find
from holdfast.snapshots import _safetensors
from holdfast.snapshots._floats import Floats
from holdfast.snapshots._mindspore import MindSporeImage
from holdfast.snapshots._options import Options, parse
from holdfast.snapshots._out import draft_of, see_that_it_may_be_made
from holdfast.snapshots._sources import need, source_of
from holdfast.snapshots._torch import TorchImage

_SUFFIX: Final = {"torch": ".pt", "dcp": "", "safetensors": ".safetensors", "ckpt": ".ckpt"}
_SERVED: Final = (
    "parameter servers hold rows, or the state of an optimizer, that are not in it; "
    "`holdfast table export` has them"
)


def say(text: str) -> None:
    """Write a line for the user."""
    print(f"holdfast snapshot export: {text}", file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    options = parse(words)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        print(Export(options).run())
    except Error as error:
        say(str(error))
        return 1
    except MemoryError:
        say("there is too little memory for the state")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing was made")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _interrupt(*_: object) -> None:
    """Let SIGTERM remove what is half written, as Ctrl-C does."""
    raise KeyboardInterrupt


class Export:
    """One run of the command."""

    def __init__(self, options: Options) -> None:
        """Find the snapshot."""
        self._options = options
        see_that_it_may_be_made(options.out, options.force)
        self._snapshot = find(options.snapshot)
        self._remarks: dict[str, None] = {}  # In order, each once.
        self._joined = False  # The parts of all ranks.

    def run(self) -> str:
        """Export; return a sentence about it."""
        options, snapshot = self._options, self._snapshot
        whole = options.rank == "all"
        ranks = list(range(snapshot.workers)) if whole else [int(options.rank or 0)]
        if ranks[-1] >= snapshot.workers:
            raise UserError(
                f"{snapshot.folder} has ranks 0 to {snapshot.workers - 1} that train, and no rank "
                f"{ranks[-1]}"
            )
        with draft_of(options.out, options.force) as draft:
            if whole:
                draft.mkdir()
                for rank in ranks:
                    what = self._write(rank, lambda suffix, r=rank: draft / f"rank-{r}{suffix}")
            else:
                what = self._write(ranks[0], lambda _: draft)
        if snapshot.servers:
            self._remark(_SERVED)
        for remark in self._remarks:
            say(remark)
        last = snapshot.workers - 1 if self._joined else ranks[-1]
        whose = f"ranks {ranks[0]} to {last}" if last > ranks[0] else f"rank {ranks[0]}"
        return f"{options.out}: {what} of {whose}, from {snapshot.folder}"

    def _remark(self, text: str) -> None:
        self._remarks[text] = None

    def _write(self, rank: int, place: Any) -> str:
        """Write what a rank has; return words for it."""
        options = self._options
        source = source_of(self._snapshot, rank)
        if isinstance(source, TorchImage) and source.sharded:
            self._see_shard(source, rank)
        if isinstance(source, Floats):
            if not source.raw():
                raise UserError(
                    f"{self._snapshot.folder} holds bytes that a program has laid out itself, so "
                    "only that program can read them: neither PyTorch's nor MindSpore's State, nor "
                    "parameters by name"
                )
            self._remark("parameters are flat, as Holdfast keeps them: give them your shapes")
        usual = "ckpt" if isinstance(source, MindSporeImage) else "torch"
        form = options.format or usual
        _see_that_it_goes(form, source)
        path = place(_SUFFIX[form])
        if form == "safetensors":
            self._write_safetensors(path, source)
        elif isinstance(source, MindSporeImage):
            need("mindspore")
            _write_ckpt(path, source)
        else:
            need("torch")
            values = source.everything(set(options.without))
            if form == "dcp":
                _write_dcp(path, values)
            elif not _write_torch(path, values):
                self._remark(
                    "torch.load(..., weights_only=True) does not read it, since State keeps other "
                    "things than tensors and simple values; weights_only=False does"
                )
        return f"step {source.step} as {form}"

    def _see_shard(self, source: TorchImage, rank: int) -> None:
        if self._options.rank:
            self._remark(
                "each file is a shard: it has the part of the model that its rank holds, and no "
                "more"
            )
            return
        others = [source_of(self._snapshot, each) for each in range(1, self._snapshot.workers)]
        source.join([source, *(each for each in others if isinstance(each, TorchImage))])
        self._joined = True

    def _write_safetensors(self, path: Path, source: Any) -> None:
        if isinstance(source, TorchImage) and (names := source.extras()):
            self._remark(f"safetensors has tensors alone, so {', '.join(names)} is not in it")
        kind = "np" if isinstance(source, MindSporeImage) else "pt"
        _safetensors.write(path, source.raw(), {"format": kind, "step": str(source.step)})


def _see_that_it_goes(form: str, source: Any) -> None:
    if isinstance(source, MindSporeImage) != (form == "ckpt") and form != "safetensors":
        which = "MindSpore" if isinstance(source, MindSporeImage) else "PyTorch or C++"
        fits = "ckpt and safetensors" if which == "MindSpore" else "torch, dcp and safetensors"
        raise UserError(f"--format {form}: the snapshot is of {which}, which goes as {fits}")


def _write_torch(path: Path, values: dict[str, Any]) -> bool:
    """Write a file; return whether it can be loaded with weights_only=True."""
    import torch

    torch.save(values, path)
    try:
        torch.load(path, weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError):
        return False
    return True


def _write_dcp(path: Path, values: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    path.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(values, checkpoint_id=str(path), no_dist=True)


def _write_ckpt(path: Path, source: MindSporeImage) -> None:
    # MindSpore wants a name with its ending, whatever OUT is called.
    named = path.with_name(f"{path.name}.ckpt") if path.suffix != ".ckpt" else path
    try:
        source.write_checkpoint(named)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"MindSpore could not write the checkpoint: {error}") from error
    if named != path:
        named.rename(path)
