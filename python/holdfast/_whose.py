"""Tells whose code a file is: the program's, Python's, a framework's, or ours."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

_OURS: Final = str(Path(__file__).resolve().parent) + os.sep
_STANDARD: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
# Packages that do not count as the program's: their objects change for reasons of their own.
FRAMEWORKS: Final = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "functorch", "triton", "numpy", "scipy"),
        *("pandas", "sklearn", "holdfast", "mindspore", "tqdm", "rich", "matplotlib", "PIL"),
        *("tensorboard", "wandb", "yaml", "sympy", "networkx", "jinja2", "fsspec", "psutil"),
        *("requests", "urllib3", "pytest", "_pytest", "pluggy", "setuptools", "pip"),
    )
)


@functools.cache
def is_programs_code(path: str) -> bool:
    """Whether a source file belongs to the program, or to a package that it uses as its own."""
    if path.startswith("<") or path.startswith(_OURS):
        return False
    for packages in ("site-packages", "dist-packages"):
        _head, found, tail = path.partition(f"{os.sep}{packages}{os.sep}")
        if found:
            return tail.partition(os.sep)[0].removesuffix(".py") not in FRAMEWORKS
    return not path.startswith(_STANDARD)


def is_installed(path: str) -> bool:
    """Whether a source file was installed as a package."""
    return f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path


def is_programs_module(name: str) -> bool:
    """Whether a module, by its name, is neither Python's nor a framework's nor ours."""
    top = name.partition(".")[0]
    return top not in FRAMEWORKS and top not in sys.stdlib_module_names
