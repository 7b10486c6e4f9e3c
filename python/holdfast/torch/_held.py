"""What hold() does for every trainer: it names untried versions, and what is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from holdfast import _tried
from holdfast._say import say
from holdfast.torch._attributes import Attributes
from holdfast.torch._state import State


def see_version(library: str, tried: tuple[str, ...]) -> None:
    """Say so if a library's version was not tried."""
    version = str(getattr(sys.modules.get(library), "__version__", "?"))
    if _tried.minor(version) not in tried:
        say(f"{library} {version} was not tried; those that were: {', '.join(tried)}")


def say_what_is_lost(state: State, keepers: Iterable[Any], library: str) -> None:
    """Name the attributes of the program's own objects that a replacement makes anew."""
    if state.n or not state.engine.first_start or state.engine.seat.place.rank != 0:
        return
    for keeper in keepers:
        if isinstance(keeper, Attributes) and not keeper.is_of(library):
            for phrase in keeper.lost():
                state.engine.seat.say_once(
                    f"{phrase} is not kept: a replacement has what the program makes at its start"
                )
