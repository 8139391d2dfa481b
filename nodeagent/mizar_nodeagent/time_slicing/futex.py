"""Waking the processes that wait on a futex of a shared mapping."""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_WAKE: Final = 1
_ALL: Final = 0x7FFFFFFF

_syscall = ctypes.CDLL(None).syscall
_number = _NUMBERS[platform.machine()]


def wake_all(address: int) -> int:
    """Wake every process that waits on the word at the address. Returns how many.

    They may have mapped the file elsewhere: the kernel knows shared futexes by inode and offset.
    """
    return int(_syscall(_number, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0))
