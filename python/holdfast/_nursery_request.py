"""A nursling's request to the nursery: a process with its environment, folder and descriptors."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, NamedTuple

_PATIENCE_S: Final = 10.0  # For the rest of a request, which is written in one go.
# Variables that each process has for itself. The rest of the environment is the same for all.
_OWN_NAMES: Final = (
    "MS_ROLE",
    "MS_NODE_ID",
    "HOLDFAST_INCARNATION",
    "HOLDFAST_ATTEMPT",
    "HOLDFAST_LIFELINE",
    "HOLDFAST_SPARE_FD",
    "HOLDFAST_PYTHON_LOG",
    "HOLDFAST_PYTHON_PREDECESSOR",
)


class Request(NamedTuple):
    """The description of a process to fork."""

    connection: socket.socket
    nursling: int  # Its process id.
    folder: str
    argv: list[str]  # [python, "-u", script, ...]
    environment: dict[str, str]
    descriptors: list[int]

    def shared(self) -> dict[str, str]:
        """Return the part of the environment that is the same for all processes."""
        return {k: v for k, v in self.environment.items() if k not in _OWN_NAMES}

    def close(self) -> None:
        """Close the connection, and the descriptors that came with the request."""
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


def read(connection: socket.socket) -> Request:
    """Read a request. ValueError, OSError: it is no request, or not from this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    nursling, user, _ = struct.unpack("iII", credentials)
    if user != os.geteuid():
        raise ValueError("another user's")
    connection.settimeout(_PATIENCE_S)
    first, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 4)
    text = bytearray(first)
    while len(text) < 4 or len(text) < 4 + struct.unpack_from("=I", text)[0]:
        more = connection.recv(1 << 16)
        if not more:
            raise ValueError("a request was cut off")
        text += more
    connection.setblocking(True)
    folder, count, *rest = os.fsdecode(bytes(text[4:-1])).split("\0")
    argv, entries = rest[: int(count)], rest[int(count) :]
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return Request(connection, nursling, folder, argv, environment, descriptors)
