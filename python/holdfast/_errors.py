"""Errors, by who has to act."""

from __future__ import annotations


class Error(RuntimeError):
    """What Holdfast could not do; its text is one sentence with the remedy."""


class UserError(Error):
    """The program or its settings have to change."""


class PeerError(Error):
    """Another process of the job does not do the same as this one."""


class WorldError(Error):
    """A host, a disk or the scheduler failed, or the job was ended; the text says why."""


class MarkedError(WorldError):
    """A collective was not completed, since its generation ended: the step will be void."""


class LeftError(MarkedError):
    """Another rank has ended its training: nothing can be exchanged with it any more."""
