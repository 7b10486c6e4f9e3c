"""holdfast verify compares tables that servers have saved, by their rows."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.verify import _files, _outside, _tables
from holdfast.verify._launch import made
from holdfast.verify._records import Rank, Record
from holdfast.verify._served import environment_of, server_of

Rows = dict[int, tuple[float, float]]  # By id: a row of one value, and its optimizer's state.


def save(folder: Path, run: int, *servers: Rows, updates: int = 3, name: str = "users") -> Path:
    """Write a folder as table/saved.cc does, with any digest that is the same for equal rows."""
    folder.mkdir(parents=True)
    names = []
    for i, rows in enumerate(servers):
        count = len(rows)
        digest = sum(hash((key, *row)) for key, row in rows.items()) % (1 << 64)
        header: dict[str, Any] = {
            "__metadata__": {
                "table": name,
                "table_of": "users:1",
                "run": str(run),
                "updates": str(updates),
                "digest": str(digest),
            }
        }
        at = 0
        for part, size in (("keys", 8), ("rows", 4), ("state", 4)):
            header[part] = {"shape": [count], "data_offsets": [at, at + size * count]}
            at += size * count
        text = json.dumps(header).encode()
        body = struct.pack(f"<{count}Q", *rows)
        for which in range(2):
            body += struct.pack(f"<{count}f", *(row[which] for row in rows.values()))
        names.append(f"table-0.{i}-of-{len(servers)}.step-9.run-{run}.safetensors")
        (folder / names[-1]).write_bytes(struct.pack("<Q", len(text)) + text + body)
    manifest = {"run": run, "tables": [{"name": name, "files": names}]}
    (folder / "tables.json").write_text(json.dumps(manifest))
    return folder


ONE: Rows = {7: (1.0, 0.5), 3: (2.0, 0.5)}
OTHER: Rows = {4: (3.0, 0.5)}


@pytest.mark.parametrize(
    ("servers", "updates", "how"),
    [
        ([dict(reversed(ONE.items())), OTHER], 3, ""),
        ([{**ONE, 7: (1.0, 0.25)}, OTHER], 3, "holds another row of id 7 (1 of 3 rows differ)"),
        ([ONE, {}], 3, "holds another row of id 4 (1 of 3 rows differ)"),
        ([ONE, {4: (3.5, 0.5), 2: (0.0, 0.0)}], 3, "holds another row of id 2 (2 of 4 rows differ"),
        ([ONE, OTHER], 4, "has counted 4 updates, undisturbed 3"),
    ],
)
def test_core_verify_compares_rows_in_any_order(
    tmp_path: Path, servers: list[Rows], updates: int, how: str
) -> None:
    clean = save(tmp_path / "clean" / "rows", 11, ONE, OTHER)
    again = save(tmp_path / "again" / "rows", 12, *servers, updates=updates)
    found = _tables.differing(clean, again)
    assert [name for name, _ in found] == ["users"] * bool(how)
    assert not how or found[0][1].startswith(how), found
    # The program's own save is compared by its rows, not by its files' names.
    files = [made(tmp_path / "none", folder.parent) for folder in (clean, again)]
    filed = _files.compare(files[0], files[1], (), set())
    assert [f.name for f in filed] == ["rows/tables.json"] * bool(how)


def test_core_verify_sees_that_a_table_is_missing(tmp_path: Path) -> None:
    clean, other = save(tmp_path / "a", 1, ONE), save(tmp_path / "b", 2, ONE, name="items")
    only = "was saved in one of the runs only"
    assert _tables.differing(clean, other) == [("users", only), ("items", only)]
    assert _tables.differing(clean, tmp_path / "none") == [("users", only)]
    # A file of the same name that is something else is compared as any text.
    (tmp_path / "a" / "tables.json").write_text("a table\n")
    (tmp_path / "b" / "tables.json").write_text("two tables\n")
    files = [{"tables.json": tmp_path / folder / "tables.json"} for folder in "ab"]
    (filed,) = _files.compare(files[0], files[1], (), set())
    assert filed.how == "said 'a table', then 'two tables'"


def test_core_verify_finds_the_server_of_its_own_job() -> None:
    folder = f"/none-{os.getpid()}"
    words = {"MS_ROLE": "MS_PSERVER", "MS_NODE_ID": "2", "_HOLDFAST_VERIFY": f"{folder}/plan.json"}
    assert server_of(folder, 2) is None
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", waits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **words},
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"\n"
        assert server_of(folder, 2) == server.pid
        assert server_of(folder, 3) is None and server_of("/other", 2) is None
        assert "MS_NODE_ID=2" in environment_of(server.pid)
        assert server.stdin is not None
        server.stdin.close()
    assert environment_of(server.pid) == set()


def test_core_verify_from_outside_kills_workers_and_servers() -> None:
    ranks = {rank: Rank(states=[(n, {}) for n in range(1, 41)]) for rank in range(3)}
    servers = range(2, 3)  # Of two workers and a server, which all write a trace.
    (quick,) = _outside.orders(Record(ranks), ["0"], quick=True, servers=servers)
    assert [(kill.victim, kill.rank) for kill in quick.kills] == [
        ("rank 1", 1),
        ("rank 0", 0),
        ("server 2", 0),
    ]
    orders = _outside.orders(Record(ranks), ["0", "1"], quick=False, servers=servers)
    assert [order.name for order in orders] == [
        *("kills-0-0", "kills-1-0", "kills-0-1", "kills-1-1", "kills-server-2"),
    ]
    assert len({kill.done for kill in orders[-1].kills}) == len(orders[-1].kills) > 1
