"""Put DDP's buckets into registered memory, so that their sums need no copies.

DDP allocates its buckets itself and shows them only to the group that sums them. So a bucket is
moved when it is first summed. Its storage is replaced in place: DDP and gradients that are views of
it go on using it. A bucket that can not be moved is summed by way of copies, with equal bits.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from holdfast import _core
from holdfast._errors import Error
from holdfast._memory import Memory
from holdfast.torch._callers import is_of_the_program
from holdfast.torch._private import can_share, share

_LEAST: Final = 1 << 16  # Bytes. A smaller bucket is not worth a file and a mapping.
_DTYPES: Final = (torch.float32, torch.float64)  # The others are not added up in place.
_SHARED: Final = "/dev/shm"  # Where torch makes the files of share().


class Buckets:
    """The buckets of all DistributedDataParallel modules of this process."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Expect no bucket yet. `say` tells the user, once, if buckets can not be moved here."""
        self._say = say
        self._expected: Counter[int] = Counter()  # By number of elements.
        # The storages are held so that no other memory gets a registered address.
        self._moved: list[tuple[torch.UntypedStorage, Memory]] = []
        self._shared: dict[int, tuple[torch.UntypedStorage, int]] = {}  # By address, with its file.

    def expect(self, sizes: list[int]) -> None:
        """Note the element counts of buckets. They are moved when they are first summed."""
        if can_share():
            self._expected.update(sizes)

    @property
    def pending(self) -> bool:
        """Whether some expected buckets have not been summed yet."""
        return bool(self._expected)

    @property
    def moved(self) -> list[int]:
        """The addresses of the buckets that were moved."""
        return [memory.address for _, memory in self._moved]

    def move(self, tensor: Tensor, session: _core.Session | None) -> None:
        """Move the storage of `tensor` if it is a bucket, which DDP's reducer sums from C++.

        Without a session, only give it a file; a later call with a session registers the memory.
        """
        size = tensor.numel()
        if not self._expected.get(size) or is_of_the_program():
            return
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if storage.nbytes() != tensor.nbytes:
            return
        if storage.is_shared() and address not in self._shared:
            return
        if session is not None:
            self._expected -= Counter([size])
        if tensor.dtype not in _DTYPES or tensor.nbytes < _LEAST:
            return
        try:
            if address not in self._shared:
                file = _share(storage)
                address = storage.data_ptr()
                self._shared[address] = (storage, file)
            if session is not None:
                _, file = self._shared.pop(address)
                self._moved.append((storage, _register(storage, file, session)))
        except (Error, OSError, RuntimeError) as error:
            self._expected.clear()
            self._say(f"gradients are summed by way of copies, with the same bits: {error}")


def _share(storage: torch.UntypedStorage) -> int:
    """Have torch move a storage into a file of its own; return the file."""
    disk = os.statvfs(_SHARED)
    if disk.f_bavail * disk.f_frsize < 3 * storage.nbytes():  # With too little, the process dies.
        raise OSError(f"no room in {_SHARED} for {storage.nbytes()} bytes twice; enlarge it")
    return share(storage)


def _register(storage: torch.UntypedStorage, file: int, session: _core.Session) -> Memory:
    memory = session.register(storage.nbytes(), storage.data_ptr())
    # torch hands this descriptor to other processes, so let it stand for the new file.
    os.dup2(memory.file, file, inheritable=False)
    return memory
