"""What becomes of the output of each rank, by torchrun's -r, -t, filters and the like."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from string import Template
from typing import Final

from holdfast._nodes import fail

OUT: Final = 1  # As in torchrun's -r and -t.
ERR: Final = 2
_BOTH: Final = OUT | ERR
_ONE: Final = re.compile(r"[0123]")
_EACH: Final = re.compile(r"\d+:[0123](?:,\d+:[0123])*")


@dataclass(frozen=True)
class Streams:
    """Where the lines of the ranks of one host go, besides their logs."""

    apart: bool  # Standard output has a log of its own, worker_<rank>.stdout.log.
    shown: dict[int, int]  # Rank -> which of its streams the terminal shows.
    teed: dict[int, int]  # Rank -> which of its streams --tee names, of those that are shown.
    filters: dict[int, tuple[str, ...]]  # Stream -> words of lines that get a file of their own.

    def is_shown(self, rank: int, stream: int) -> bool:
        """Whether the terminal shows this stream. 0: both, where they are not kept apart."""
        return bool(self.shown.get(rank, 0) & (stream or _BOTH))

    def is_filtered(self, rank: int, stream: int, line: str) -> bool:
        """Whether --duplicate-stdout-filters or --duplicate-stderr-filters wants this line."""
        words = self.filters.get(stream, ())
        return bool(self.teed.get(rank, 0) & stream) and any(word in line for word in words)


def prefix(role: str, rank: int, local_rank: int, *, alone: bool) -> str:
    """Return what stands before a line of this rank on the terminal."""
    if template := os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"):
        return Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)
    return "" if alone else f"[{role}{rank}]:"


def words_of(text: str) -> tuple[str, ...]:
    """Cut a list of filters apart at its commas; two commas stand for one."""
    return tuple(word.replace("\0", ",") for word in text.replace(",,", "\0").split(",") if word)


def _by_rank(name: str, text: str, count: int) -> dict[int, int]:
    if _ONE.fullmatch(text):
        return dict.fromkeys(range(count), int(text))
    if not _EACH.fullmatch(text):
        fail(
            f"--{name} is '{text}'; allowed is 0 (nothing), 1 (standard output), 2 (standard "
            "error) or 3 (both), or one of these for each local rank: 0:3,1:1"
        )
    return {int(rank): int(value) for rank, value in (pair.split(":") for pair in text.split(","))}


def _chosen(text: str, count: int) -> Iterable[int]:
    if not text:
        return range(count)
    named = [rank.strip() for rank in text.split(",")]
    if not all(rank.isdecimal() for rank in named):
        fail(f"--local-ranks-filter is '{text}'; allowed are ranks of this host: 0,2")
    return [int(rank) for rank in named if int(rank) < count]


def streams_of(options: argparse.Namespace, count: int, first: int) -> Streams:
    """Return what the options say of the `count` ranks of this host, from `first` on."""
    redirects = _by_rank("redirects", options.redirects, count)
    tee = _by_rank("tee", options.tee, count)
    chosen = _chosen(options.local_ranks_filter, count)
    filters = {
        OUT: words_of(options.duplicate_stdout_filters),
        ERR: words_of(options.duplicate_stderr_filters),
    }
    shown = {first + rank: _BOTH & ~redirects.get(rank, 0) | tee.get(rank, 0) for rank in chosen}
    halves = {OUT, ERR} & {*redirects.values(), *tee.values()}
    return Streams(
        apart=bool(halves) or any(filters.values()),
        shown=shown,
        teed={first + rank: tee.get(rank, 0) for rank in chosen},
        filters=filters,
    )
