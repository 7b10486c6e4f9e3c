"""The store that torch wants for its groups. It refuses what other backends need of it."""

from __future__ import annotations

from torch.distributed import Store  # type: ignore[attr-defined]

from holdfast._errors import UserError


class OwnStore(Store):
    """Hold what this process sets. To ask for another process's values is an error.

    Other backends exchange addresses by a store. The addresses of a lost process would stay in it,
    and nobody would connect to its successor.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self._values: dict[str, bytes] = {}

    def _refuse(self, keys: list[str]) -> None:
        if any(key not in self._values for key in keys):
            raise UserError(
                "a group with another backend than Holdfast's, such as gloo, would not outlive the "
                "loss of a process: leave `backend` out in dist.new_group(), so that the group is "
                "one of Holdfast's (and unset TORCH_DISTRIBUTED_DEBUG, which makes groups of gloo)"
            )

    def set(self, key: str, value: bytes | str) -> None:
        """Keep a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value that this process has set."""
        self._refuse([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; return the sum."""
        count = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if the key has the expected one, or none."""
        if self._values.get(key, expected.encode()) == expected.encode():
            self.set(key, desired)
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Return whether this process has set all the keys."""
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], *_: object) -> None:
        """Raise if a key is missing, since nobody else will set it."""
        self._refuse(keys)

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def delete_key(self, key: str) -> bool:
        """Forget a value."""
        return self._values.pop(key, None) is not None
