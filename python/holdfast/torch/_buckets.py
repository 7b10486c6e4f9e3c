"""Have DDP's buckets lie in memory that all ranks add up in, so that their sums move no copies.

DDP allocates its buckets itself and shows them to nobody but the group that sums them. So each is
moved when it is first summed: its storage, in place, so that DDP goes on with it and so do
gradients that are views of it. What can not be moved is summed by way of copies, with the same
bits.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from holdfast import _core
from holdfast._errors import Error

_LEAST: Final = 1 << 16  # Bytes from which it is worth a file and a mapping.
_DTYPES: Final = (torch.float32, torch.float64)  # The others are not added up in place.
_SHARED: Final = "/dev/shm"  # Where torch makes what _share_fd_cpu_() gives.
PRIVATE: Final = "_share_fd_cpu_"  # Pinned by test_torch_buckets.py.


class Buckets:
    """Those of all DistributedDataParallel modules of this process."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Expect none. `say` tells people, once, that nothing can be moved here."""
        self._say = say
        self._expected: Counter[int] = Counter()  # Numbers of elements.
        # The storages are held: nothing else may come to lie at a registered address.
        self._moved: list[tuple[torch.UntypedStorage, _core.Memory]] = []
        self._shared: dict[int, tuple[torch.UntypedStorage, int]] = {}  # And its file, by address.

    def expect(self, sizes: list[int]) -> None:
        """Take note of buckets by their numbers of elements; they are moved when they come."""
        if hasattr(torch.UntypedStorage, PRIVATE):
            self._expected.update(sizes)

    @property
    def pending(self) -> bool:
        """Whether there are any that did not come yet."""
        return bool(self._expected)

    @property
    def moved(self) -> list[int]:
        """The addresses of those that were moved."""
        return [memory.address for _, memory in self._moved]

    def move(self, tensor: Tensor, session: _core.Session | None) -> None:
        """Move `tensor`'s storage if it is a bucket: one is summed by DDP's reducer, from C++.

        Without a session: only what can be done before; move() with one is to come.
        """
        size = tensor.numel()
        if not self._expected.get(size) or _is_of_a_user():
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


def _is_of_a_user() -> bool:
    """Whether a sum was asked for by dist.all_reduce(), not by the reducer in a backward pass."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("holdfast.torch."):
        frame = frame.f_back
    name: str = frame.f_globals["__name__"]
    return name == "torch.distributed.distributed_c10d"


def _share(storage: torch.UntypedStorage) -> int:
    """Have torch move a storage into a file of its own; return that."""
    disk = os.statvfs(_SHARED)
    if disk.f_bavail * disk.f_frsize < 3 * storage.nbytes():  # Too little is SIGBUS in torch.
        raise OSError(f"no room in {_SHARED} for {storage.nbytes()} bytes twice; enlarge it")
    file: int = storage._share_fd_cpu_()[0]
    return file


def _register(storage: torch.UntypedStorage, file: int, session: _core.Session) -> _core.Memory:
    memory = session.register(storage.nbytes(), storage.data_ptr())
    # What torch has made is no more used, and this is what it hands on to other processes.
    os.dup2(memory.file, file, inheritable=False)
    return memory
