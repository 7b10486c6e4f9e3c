"""Write tensors in the format of safetensors, which needs no library."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast._errors import UserError

# By the name that torch or NumPy has for a type: that of safetensors, and bytes of an element.
TYPES: Final[dict[str, tuple[str, int]]] = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "complex64": ("C64", 8),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
_ALIGN: Final = 8


class Raw(NamedTuple):
    """A tensor as its bytes, element by element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: memoryview


def write(path: Path, tensors: Sequence[Raw], about: dict[str, str]) -> None:
    """Write a new file. Tensors that share memory are written once for each name."""
    header: dict[str, object] = {"__metadata__": about}
    at = 0
    # Those of the largest elements come first, so that each lies where its elements may.
    ordered = sorted(tensors, key=lambda raw: -TYPES.get(raw.dtype, ("", 0))[1])
    for raw in ordered:
        if raw.dtype not in TYPES:
            raise UserError(
                f"`{raw.name}` is of type {raw.dtype}, which safetensors does not have; use "
                "another --format"
            )
        end = at + raw.content.nbytes
        header[raw.name] = {
            "dtype": TYPES[raw.dtype][0],
            "shape": list(raw.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for raw in ordered:
            file.write(raw.content)
