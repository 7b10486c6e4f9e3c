"""The command line of `holdfast snapshot export`; its --help is the manual."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from holdfast._options import USAGE_EXIT

FORMATS: Final = ("torch", "dcp", "safetensors", "ckpt")
_MANUAL: Final = """\
Makes of a snapshot what PyTorch or MindSpore load without Holdfast.

  torch        one file by torch.save, with what State has kept under its names: "model" as
               model.load_state_dict() takes it (names as without DistributedDataParallel),
               "optimizer" as optimizer.load_state_dict() takes it, schedulers and all else by the
               names that State was given, "vars", "step", "epoch". Several models or optimizers
               without names are "model1", "model2", "adamw1". The usual for PyTorch.
  dcp          the same as a folder of torch.distributed.checkpoint
  safetensors  the model's tensors alone, by name, in one file, as for Hugging Face. With
               MindSpore, all parameters.
  ckpt         one file for mindspore.load_checkpoint: all parameters, the optimizer's too, with
               "step_num" and "epoch_num". The usual for MindSpore; needs a Python with mindspore.

torch and dcp need a Python with torch. Of a C++ program parameters and moments are exported, by
name and flat, since Holdfast does not know their shapes.

All ranks hold the same model as a rule, so rank 0's part is taken. Where each rank holds a part
only, as with fully_shard(), these are put together, if tensors are cut along one dimension over all
ranks of a mesh of one. --rank R exports the part of one rank as it is, and --rank all one file for
each into a folder: rank-0.pt and so on.

All digests are checked. Nothing of the snapshot is run, wherever it comes from: what is neither
plain value nor tensor nor array is refused by name. What parameter servers hold is not exported:
`holdfast table` does that.

OUT appears when it is whole, and not before.
"""


@dataclass(frozen=True)
class Options:
    """What to export, and how."""

    snapshot: Path
    out: Path
    format: str  # "": the usual of the framework.
    rank: str  # "": rank 0, if it holds all; a number; all.
    without: tuple[str, ...]
    force: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT, f"holdfast snapshot export: {message} (--help)\n")


def _rank(text: str) -> str:
    if text == "all" or (text.isascii() and text.isdecimal() and len(text) < 8):
        return text if text == "all" else str(int(text))
    raise argparse.ArgumentTypeError("a rank, or all")


def parse(words: Sequence[str]) -> Options:
    """Read the command line."""
    parser = _Parser(
        prog="holdfast snapshot export",
        description=_MANUAL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "snapshot",
        metavar="DIR[/NAME]",
        type=Path,
        help="a folder of snapshots, of which the newest whole one is taken; or one snapshot",
    )
    add("--to", metavar="OUT", type=Path, required=True, help="the file or folder to be made")
    add("--format", choices=FORMATS, default="", help="see above")
    add("--rank", type=_rank, metavar="R|all", help="whose part; see above")
    add(
        "--without",
        metavar="NAME",
        action="append",
        default=[],
        help="leave out what State keeps under this name (torch, dcp); may be given again",
    )
    add("--force", action="store_true", help="replace OUT if it is there")
    given = parser.parse_args(words)
    return Options(
        given.snapshot,
        given.to,
        given.format,
        given.rank or "",
        tuple(given.without),
        given.force,
    )
