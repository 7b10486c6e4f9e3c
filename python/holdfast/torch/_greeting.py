"""Let all ranks compare what they keep and where they are, at the beginning of a generation."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast._core import Session
from holdfast._errors import MarkedError, PeerError
from holdfast._versions import tell, told


class Hello(NamedTuple):
    """What a rank tells the others when a generation begins."""

    restarted: int  # This rank begins its first version since its program began.
    behind: int  # This rank has not come to the others' step yet.
    shapes: bytes  # A digest of what it keeps.
    version: int


class Again(NamedTuple):
    """What a rank tells the others in the first step that all make together."""

    asked: int  # Since the last step, the other ranks answered a collective of this rank.
    guessed: int  # Since the last step, this rank got an echo.
    behind: int  # This is the rank's first step with the others.
    what: int  # A digest of what the rank begins: which step, or which result.


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
