"""Change a shard of a snapshot and make all digests right again, as somebody would who means it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from holdfast._snapshot_files import _digest


def forge(folder: Path, rank: int, change: Callable[[str, bytearray], None]) -> None:
    """Give each tensor of a rank's shard to `change`, which may change its bytes."""
    path = folder / f"rank-{rank}.safetensors"
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    text = bytes(raw[8 : 8 + length])
    header = json.loads(text)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        content = raw[begin:end]
        change(name, content)
        assert len(content) == end - begin
        raw[begin:end] = content
        old = header["__metadata__"][f"xxh3.{name}"]
        text = text.replace(old.encode(), _digest(content).encode())
    text = text[: -len(b',"xxh3":"0123456789abcdef"}}')]
    was = header["__metadata__"]["xxh3"]
    now = _digest(bytearray(text))
    raw[8 : 8 + length] = text + b',"xxh3":"' + now.encode() + b'"}}'
    path.write_bytes(raw)
    manifest = (folder / "manifest.json").read_text().replace(was, now)
    manifest = re.sub(r',\n  "xxh3": "[0-9a-f]{16}"\n}\n$', "", manifest)
    sealed = _digest(bytearray(manifest.encode()))
    (folder / "manifest.json").write_text(f'{manifest},\n  "xxh3": "{sealed}"\n}}\n')
