"""Let all ranks tell each other, before the first step of a generation, how they stand."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast._core import Session
from holdfast._errors import MarkedError, PeerError
from holdfast._versions import tell, told


class Hello(NamedTuple):
    """A rank tells this about itself."""

    restarted: int  # It comes from the beginning of the program.
    behind: int  # It has not come to the step of the others yet.
    shapes: bytes  # A digest of what it keeps.
    version: int


class Again(NamedTuple):
    """A rank tells this in the first step that all make together."""

    asked: int  # The others gave it an answer since the last step.
    guessed: int  # It answered itself.
    behind: int  # It makes its first step here.
    what: int  # A digest of what it begins.


_HELLO: Final = struct.Struct("<2Q16sQ")
_AGAIN: Final = struct.Struct("<4Q")


def greet(session: Session, mine: Hello) -> list[Hello] | None:
    """Tell the others `mine`; return all by rank. None: a fault. PeerError: ranks differ."""
    given = told(session, _HELLO, *mine)
    if given is None:
        return None
    hellos = [Hello(*fields) for fields in given]
    for rank, hello in enumerate(hellos):
        if hello.shapes != mine.shapes or hello.version != mine.version:
            other = (
                "keeps other parameters" if hello.shapes != mine.shapes else "is at another step"
            )
            raise PeerError(
                f"rank {rank} {other} than rank {session.world.rank}; all ranks keep the same, "
                "optimizers too (of a pipeline all its stages)"
            )
    return hellos


def greet_again(session: Session, own: Again, what: str) -> bool:
    """Check, in the first step that all make, that no rank relies on answers it gave itself.

    A successor may repeat what the program does between steps, such as an evaluation, when the
    others already have their answers. `what`: what this rank begins. False: a fault came.

    Errors: PeerError if a rank begins something else.
    """
    given = told(session, _AGAIN, *own)
    if given is None:
        return False
    all_asked, all_guessed, all_behind, begun = zip(*given)
    if any(all_guessed) and (any(all_asked) or all(all_behind)):
        with suppress(MarkedError):
            # A rank that ends now must not cut short the exchange that tells the others.
            tell(session, _AGAIN, *own)
        raise MarkedError(
            "a process was lost after the ranks exchanged something between two steps, which its "
            "replacement can not be told again; this process ends too, so that all start again "
            "from the last step. state.once(f) keeps what f exchanges"
        )
    if any(other != own.what for other in begun):
        raise PeerError(
            f"this rank begins {what} where another begins something else: a process that replaces "
            "another comes to other calls than the first. Before a loop of your own, state.once(f) "
            "has no place that can be found again: call it in the loop"
        )
    return True
