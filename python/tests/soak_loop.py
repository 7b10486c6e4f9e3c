"""The loop of a soak: make trials until N processes were killed; note each in a journal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

# (number, seed, folder, undisturbed runs by case) -> a line of the journal, with "victims".
Trial = Callable[[int, int, Path, dict[str, Any]], dict[str, Any]]


def soak(name: str, kills: int, trial: Trial, ended: str = "kills, all bit for bit") -> None:
    """Make trials as the command line says; exit with 1 if one fails. `kills`: the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    if options.journal and options.journal.exists():
        lines = [json.loads(line) for line in options.journal.read_text().splitlines()]
    folder = Path(tempfile.mkdtemp(prefix=f"{name.replace('_', '-')}-"))
    calm: dict[str, Any] = {}
    while sum(len(line["victims"]) for line in lines) < options.kills:
        number = len(lines)
        try:
            lines.append(trial(number, options.seed, folder, calm))
        except AssertionError as error:
            print(f"{name}: trial {number} of seed {options.seed} failed, in {folder}: {error}")
            sys.exit(1)
        if options.journal:
            with options.journal.open("a") as journal:
                journal.write(json.dumps(lines[-1]) + "\n")
        print(lines[-1], flush=True)
    victims = Counter(victim for line in lines for victim in line["victims"])
    print(f"{len(lines)} trials, {sum(victims.values())} {ended}: {dict(victims)}")
    shutil.rmtree(folder)
