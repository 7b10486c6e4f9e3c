"""Errors, sorted by who has to act."""

from __future__ import annotations


class Error(RuntimeError):
    """Holdfast could not do something. The text is one sentence that says what to do."""


class UserError(Error):
    """The program or its settings have to change."""


class PeerError(Error):
    """Another process of the job does something else than this one."""


class WorldError(Error):
    """A host, a disk or the scheduler failed, or the job was ended. The text says why."""


class MarkedError(WorldError):
    """A fault ended the generation before a collective was complete. The step will be void."""


class LeftError(MarkedError):
    """Another rank has ended its training. Nothing can be exchanged with it any more."""
