"""Prints names and digests of a file's contents: python -m holdfast.verify._unpack FILE ..."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any, Final

from holdfast._digest import digest

_DEEP: Final = 4


def _load(path: str) -> Any:
    if path.endswith((".npy", ".npz")):
        import numpy

        found = numpy.load(path, allow_pickle=True)
        return dict(found) if path.endswith(".npz") else found
    if path.endswith(".ckpt") and "mindspore" in sys.argv:
        import mindspore

        return mindspore.load_checkpoint(path)
    with open(path, "rb") as file:
        head = file.read(2)
        if head[:1] == b"\x80":
            file.seek(0)
            return pickle.load(file)
    import torch

    return torch.load(path, map_location="cpu", weights_only=False)


def _names(thing: Any, name: str, depth: int) -> dict[str, str]:
    if isinstance(thing, dict) and depth < _DEEP and thing:
        found: dict[str, str] = {}
        for key, value in thing.items():
            found.update(_names(value, f"{name}.{key}" if name else str(key), depth + 1))
        return found
    return {name: digest(thing)}


def main(paths: list[str]) -> None:
    """Print a line of JSON for each file; null if the file can not be read."""
    for path in paths:
        try:
            print(json.dumps(_names(_load(path), "", 0)))
        except Exception:
            print("null")


if __name__ == "__main__":
    main(sys.argv[1:])
