"""take_page(): puts a page of an empty file in a page's place, so that touching it is a SIGBUS."""

TAKE_PAGE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
empty = os.memfd_create("empty")


def take_page(at, touches):
    assert libc.mmap(at, 4096, 3, 0x11, empty, 0) == at
    if touches:
        ctypes.string_at(at, 1)
"""
