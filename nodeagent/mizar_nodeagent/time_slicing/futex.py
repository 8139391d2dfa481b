"""Wakes processes that wait on a futex in a shared mapping."""

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
    """Wake every process that waits on the futex word at this address. Returns how many were woken,
    or -1 if the system call failed.

    The processes may have mapped the file at other addresses: the kernel identifies a shared futex
    by inode and offset.
    """
    return int(_syscall(_number, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0))
