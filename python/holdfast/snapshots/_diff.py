"""Compare two snapshots by the names of what they hold: `holdfast snapshot diff`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast._errors import Error, UserError
from holdfast._snapshot_files import Snapshot, find
from holdfast.snapshots._safetensors import Raw
from holdfast.snapshots._sources import need, source_of
from holdfast.snapshots._torch import TorchImage

_TROUBLE: Final = 2
_BLOCK: Final = 1 << 23
_MANUAL: Final = """\
Compares two snapshots: what made them, and rank by rank what State has kept, by its names.

A and B are a folder of snapshots, of which the newest whole one is taken, or one snapshot in it.
What is equal is counted. Of what differs, it says how many bytes do, where the first of them is and
how far apart the numbers are. All digests are checked. Nothing of the snapshots is run.

Exit codes: 0 equal; 1 different; 2 wrong command line, or something can not be read.
"""
_Made = Callable[[], Any]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_TROUBLE, f"holdfast snapshot diff: {message} (--help)\n")


def main(words: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    parser = _Parser(
        prog="holdfast snapshot diff",
        description=_MANUAL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name in ("A", "B"):
        parser.add_argument(name, metavar=f"{name}: DIR[/NAME]", type=Path)
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args(words)
    try:
        need("numpy")
        found = compare(find(given.A), find(given.B))
    except Error as error:
        print(f"holdfast snapshot diff: {error}", file=sys.stderr)
        return _TROUBLE
    except MemoryError:
        print("holdfast snapshot diff: there is too little memory for both", file=sys.stderr)
        return _TROUBLE
    print(json.dumps(found, indent=2) if given.json else "\n".join(map(_safe, _lines(found))))
    is_other = found["about"] or any(_differs(rank) for rank in found["ranks"])
    return 1 if is_other else _TROUBLE if any(r["unread"] for r in found["ranks"]) else 0


def _differs(rank: dict[str, Any]) -> bool:
    return bool(rank["differs"] or rank["only_a"] or rank["only_b"])


def compare(a: Snapshot, b: Snapshot) -> dict[str, Any]:
    """Return all in which two snapshots differ."""
    about = {key: [was, now] for key, was in a.about.items() if (now := b.about[key]) != was}
    ranks = [
        _compare_ranks(a, b, rank)
        for rank in range(max(a.workers + a.servers, b.workers + b.servers))
    ]
    for rank in ranks:
        about.update(rank.pop("makers"))
    return {"a": str(a.folder), "b": str(b.folder), "about": about, "ranks": ranks}


def _compare_ranks(a: Snapshot, b: Snapshot, rank: int) -> dict[str, Any]:
    sides = [_Side(each, rank) for each in (a, b)]
    found: dict[str, Any] = {"rank": rank, "equal": 0}
    found |= {key: [] for key in ("differs", "only_a", "only_b", "unread")}
    made: list[dict[str, Any]] = [{}, {}]
    for name in dict.fromkeys([*sides[0].names, *sides[1].names]):
        try:
            for side, to in zip(sides, made):
                to.clear()
                if name in side.names:
                    to.update(_flat(side.names[name](), name))
        except UserError as error:
            found["unread"].append(str(error))
            continue
        for path in made[0].keys() & made[1].keys():
            change = _change(path, made[0][path], made[1][path])
            found["differs"] += [change] if change else []
            found["equal"] += not change
        for i, which in enumerate(("only_a", "only_b")):
            found[which] += [path for path in made[i] if path not in made[1 - i]]
    found["differs"].sort(key=lambda change: str(change["name"]))
    was, now = (side.made_by for side in sides)
    changed = [name for name in was if now.get(name, was[name]) != was[name]]
    return {**found, "makers": {name: [was[name], now[name]] for name in changed}}


class _Side:
    """What one of the snapshots has of a rank: functions that return it, by names."""

    def __init__(self, snapshot: Snapshot, rank: int) -> None:
        self.names: dict[str, _Made] = {}
        self.made_by: dict[str, str] = {}
        if rank >= snapshot.workers + snapshot.servers:
            return
        if rank >= snapshot.workers:
            self.names = {"a parameter server's rows": lambda: snapshot.rows(rank)}
            return
        source = source_of(snapshot, rank)
        self.made_by = getattr(source, "made_by", {})
        self.names = {**source.kept(), **source.rest()}
        if isinstance(source, TorchImage):
            self.names["state.n"] = lambda: source.step


# ---- Values --------------------------------------------------------------------------------------


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value with their names. Tensors and arrays become Raw."""
    parts: Any = None
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)) and not isinstance(value, Raw):
        parts = enumerate(value)
    if parts is not None:
        for key, part in parts:
            yield from _flat(part, f"{name}.{key}")
    else:
        yield name, _raw(name, value)


def _raw(name: str, value: Any) -> Any:
    if type(value).__module__.startswith("torch") and hasattr(value, "untyped_storage"):
        import torch

        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return Raw(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), content)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return Raw(name, str(value.dtype), value.shape, memoryview(value.tobytes()))
    if isinstance(value, (bytes, bytearray)):
        return Raw(name, "uint8", (len(value),), memoryview(value))
    return value


def _change(name: str, a: Any, b: Any) -> dict[str, Any]:
    """Return what is different; empty: nothing."""
    if isinstance(a, Raw) and isinstance(b, Raw):
        if (a.dtype, a.shape) == (b.dtype, b.shape):
            return _change_of_bytes(name, a, b)
        a, b = (f"{each.dtype} {list(each.shape)}" for each in (a, b))
    elif isinstance(a, Raw) or isinstance(b, Raw):
        a, b = ("a tensor" if isinstance(each, Raw) else each for each in (a, b))
    elif type(a) is type(b) and (a == b or (a != a and b != b)):
        return {}
    return {"name": name, "a": _short(a), "b": _short(b)}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _safe(text: str) -> str:
    """Return a text for a terminal: a snapshot may come from anybody."""
    return text if text.isprintable() else ascii(text)


def _change_of_bytes(name: str, a: Raw, b: Raw) -> dict[str, Any]:
    import numpy

    count, first, most = 0, -1, 0.0
    size = a.content.nbytes
    numbers = _numbers_of(a.dtype)
    for at in range(0, size, _BLOCK):
        one, other = (
            numpy.frombuffer(each.content, numpy.uint8)[at : at + _BLOCK] for each in (a, b)
        )
        where = one != other
        if not where.any():
            continue
        first = first if count else at + int(where.argmax())
        count += int(where.sum())
        if numbers:
            with numpy.errstate(all="ignore"):
                apart = float(numpy.abs(numbers(one) - numbers(other)).max())
            most = apart if math.isnan(apart) or math.isnan(most) or apart > most else most
    if not count:
        return {}
    change: dict[str, Any] = {"name": name, "bytes": count, "of": size, "first": first}
    return {**change, "most": most} if numbers else change


def _numbers_of(dtype: str) -> Any:
    """Return what makes numbers of bytes; None: they are not known as numbers."""
    import numpy

    if dtype == "bfloat16":
        return lambda raw: (
            (raw.view(numpy.uint16).astype(numpy.uint32) << 16)
            .view(numpy.float32)
            .astype(numpy.float64)
        )
    if dtype in ("float64", "float32", "float16"):
        return lambda raw: raw.view(dtype).astype(numpy.float64)
    return None


# ---- Words ---------------------------------------------------------------------------------------


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"A: {found['a']}"
    yield f"B: {found['b']}"
    for key, (was, now) in found["about"].items():
        yield f"{key}: {_short(was)}, {_short(now)}"
    alike: dict[tuple[str, ...], list[int]] = {}  # Ranks that hold alike differ alike.
    for rank in found["ranks"]:
        alike.setdefault(tuple(_lines_of(rank)), []).append(rank["rank"])
    for lines, ranks in alike.items():
        whose = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        yield from (f"{whose}: {line}" for line in lines)


def _lines_of(rank: dict[str, Any]) -> Iterator[str]:
    for change in rank["differs"]:
        if "bytes" not in change:
            yield f"{change['name']}: {change['a']}, {change['b']}"
            continue
        apart = f"; max |a-b| = {change['most']:.6g}" if "most" in change else ""
        yield (
            f"{change['name']}: {change['bytes']:,} of {change['of']:,} bytes differ, the first at "
            f"{change['first']:,}{apart}"
        )
    for side in ("a", "b"):
        yield from (f"{name}: only in {side.upper()}" for name in rank[f"only_{side}"])
    yield from (f"not compared: {error}" for error in rank["unread"])
    yield f"{rank['equal']:,} equal, {len(rank['differs']):,} different"
