"""Speak to the user."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line for the user."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)
