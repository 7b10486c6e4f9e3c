"""The key-values of a job, which its scheduler keeps."""

from __future__ import annotations

import abc
import ctypes as c
from collections.abc import Sequence

from holdfast._abi import ANY_VERSION, U64, Status, check, lib
from holdfast._errors import UserError


def _version(number: int) -> int:
    if 0 <= number < ANY_VERSION:
        return number
    raise UserError(f"a key's version is {number}; it has to be 0 or more")


class KeyValues(abc.ABC):
    """The key-values of one worker's job."""

    @property
    @abc.abstractmethod
    def handle(self) -> int:
        """The hf_worker*."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value for the whole job, unless the key has one. See hf_kv_put()."""
        check(lib.hf_kv_put(self.handle, key.encode(), value, len(value)))

    def get(self, keys: Sequence[str], wait_s: float = 0) -> tuple[int, bytes] | None:
        """Return the index of the first of the keys that has a value, and the value.

        None: no key has a value within `wait_s` seconds. Ctrl-C takes effect only after that time.
        """
        array = (c.c_char_p * len(keys))(*(key.encode() for key in keys))
        which, value, size = U64(), c.c_void_p(), U64()
        status = lib.hf_kv_get(
            self.handle,
            array,
            len(keys),
            int(wait_s * 1000),
            c.byref(which),
            c.byref(value),
            c.byref(size),
        )
        if status == Status.PENDING:
            return None
        check(status)
        return which.value, c.string_at(value, size.value)

    def set(self, key: str, value: bytes, expected: int | None) -> int | None:
        """Set the value if the key is at the expected version. See hf_kv_set().

        Return the value's version; None: the key is at another version.
        """
        at = ANY_VERSION if expected is None else _version(expected)
        is_set, version = c.c_int(), U64()
        check(
            lib.hf_kv_set(
                self.handle, key.encode(), value, len(value), at, c.byref(is_set), c.byref(version)
            )
        )
        return version.value if is_set.value else None

    def read(self, key: str, newer_than: int, wait_s: float) -> tuple[bytes, int] | None:
        """Return a value newer than a version, and its version. See hf_kv_read().

        None: there is none within `wait_s` seconds.
        """
        value, size, version = c.c_void_p(), U64(), U64()
        status = lib.hf_kv_read(
            self.handle,
            key.encode(),
            _version(newer_than),
            int(wait_s * 1000),
            c.byref(value),
            c.byref(size),
            c.byref(version),
        )
        if status == Status.PENDING:
            return None
        check(status)
        return c.string_at(value, size.value), version.value
