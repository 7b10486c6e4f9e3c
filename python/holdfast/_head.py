"""The head of an image: a table of what lies where, and the objects that lie nowhere else."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from holdfast._errors import UserError

# The kind of image, whose last byte is that of its format; sizes of the table and of the objects;
# where the rest of the image begins.
_FORM: Final = struct.Struct("<8sQQQ")
BYTES: Final = _FORM.size


class Head(NamedTuple):
    """The parts of a head."""

    table: bytes | memoryview  # Pickled.
    objects: bytes | memoryview  # Pickled.
    start: int  # Where in the image the data that the table describes begins.

    @property
    def size(self) -> int:
        """The bytes of the whole head."""
        return BYTES + len(self.table) + len(self.objects)

    def write(self, view: memoryview, kind: bytes, has_table: bool = False) -> None:
        """Write the head into an image. `has_table`: the image has this table already."""
        at = BYTES + len(self.table)
        if not has_table:
            view[BYTES:at] = self.table
        view[at : self.size] = self.objects
        _FORM.pack_into(view, 0, kind, len(self.table), len(self.objects), self.start)


def read(view: memoryview, kind: bytes) -> Head:
    """Return the head of an image. UserError: the image is of another kind."""
    found, table, objects, start = _FORM.unpack_from(view, 0)
    if found != kind and found[:-1] == kind[:-1]:
        from holdfast import __version__

        raise UserError(
            f"the state of this rank is of format {found[-1:]!r}, which another release of "
            f"Holdfast made; this is {__version__}, whose format is {kind[-1:]!r}. Go on with the "
            "release that made it (`holdfast snapshot ls` names a snapshot's), or begin anew"
        )
    if found != kind:
        raise UserError(
            "the state of this rank was written by another kind of program, or by one with another "
            "model or optimizer; a job goes on, or resumes, with the program it was started with"
        )
    at = BYTES + table
    return Head(view[BYTES:at], view[at : at + objects], start)
