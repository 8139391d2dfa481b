"""The state file, accessed through libsimgpu-admin.so, so that only C code knows its layout."""

import ctypes
import errno
import os
from functools import cache
from pathlib import Path

from simgpu.build import ADMIN, compiled

MACHINE = -1  # the number that stands for the machine in place of a card


class StateError(OSError):
    """The state file cannot be created or used."""


class _Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("total", "free", "used", "reserved")]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled() / ADMIN), use_errno=True)
    library.simadmin_open.restype = ctypes.c_void_p
    for function in ("works", "record", "count"):
        getattr(library, f"simadmin_{function}").restype = ctypes.c_uint64
    return library


def create_state(path: Path, cards: int) -> None:
    """Create a state file with `cards` empty cards. Raises StateError if it exists or cannot be
    written."""
    if error := _library().simadmin_create(os.fsencode(path), ctypes.c_uint(cards)):
        raise StateError(error, os.strerror(error), str(path))


class StateFile:
    """An open state file. Close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._c = _library()
        handle = self._c.simadmin_open(os.fsencode(path))
        if not handle:
            error = ctypes.get_errno()
            raise StateError(error, os.strerror(error), str(path))
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p(handle)

    def close(self) -> None:
        if self._handle:
            self._c.simadmin_close(self._handle)
        self._handle = None

    def _do(self, function: str, *arguments: object) -> None:
        if error := getattr(self._c, f"simadmin_{function}")(self._handle, *arguments):
            raise StateError(error, f"simadmin_{function}{arguments[:2]}")

    def number(self, card: int, field: str) -> int:
        value = ctypes.c_uint64()
        self._do("get", card, field.encode(), ctypes.byref(value))
        return value.value

    def set_number(self, card: int, field: str, value: int) -> None:
        self._do("set", card, field.encode(), ctypes.c_uint64(value))

    def text(self, card: int, field: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        self._do("get_text", card, field.encode(), buffer, ctypes.c_size_t(256))
        return buffer.value.decode()

    def set_text(self, card: int, field: str, text: str) -> None:
        self._do("set_text", card, field.encode(), text.encode())

    def card_count(self) -> int:
        return self.number(MACHINE, "card_count")

    def spare(self) -> int:
        """A card number that is not in use, for a MIG instance. Raises StateError if all are in
        use."""
        if (number := int(self._c.simadmin_spare(self._handle))) < 0:
            raise StateError(errno.ENOSPC, "a machine has 16 cards and MIG instances at most")
        return number

    def raise_xid(self, card: int, xid: int) -> None:
        self._do("raise_xid", ctypes.c_uint(card), ctypes.c_uint64(xid))

    def usage(self, card: int) -> tuple[int, int, int]:
        """Total, free and used bytes, without those of dead processes."""
        usage = _Usage()
        self._c.simadmin_usage(self._handle, ctypes.c_uint(card), ctypes.byref(usage))
        return usage.total, usage.free, usage.used

    def tick(self, ns: int) -> None:
        self._c.simadmin_tick(self._handle, ctypes.c_uint64(ns))

    def busy(self, card: int) -> list[int]:
        """ns of work done, number of context switches, and simulated time."""
        figures = (ctypes.c_uint64 * 3)()
        self._c.simadmin_busy(self._handle, ctypes.c_uint(card), figures)
        return list(figures)

    def works(self, card: int) -> tuple[int, dict[int, int]]:
        """Simulated time, and the ns of work done for each PID until then."""
        room = self.slots()
        count = ctypes.c_uint(room)
        pids, works = (ctypes.c_uint32 * room)(), (ctypes.c_uint64 * room)()
        now = self._c.simadmin_works(
            self._handle, ctypes.c_uint(card), ctypes.byref(count), pids, works
        )
        found = range(count.value)
        return int(now), {pids[i]: works[i] for i in found}

    def record(self, card: int, recording: ctypes.Structure) -> int:
        """See record.py."""
        return int(
            self._c.simadmin_record(self._handle, ctypes.c_uint(card), ctypes.byref(recording))
        )

    def count(self, card: int, recording: ctypes.Structure, end: bool) -> int:
        """See record.py."""
        pointer = ctypes.byref(recording)
        return int(self._c.simadmin_count(self._handle, ctypes.c_uint(card), pointer, int(end)))

    def pid(self, slot: int) -> int:
        """The PID of the slot's last owner, as the owner sees it."""
        return int(self._c.simadmin_pid(self._handle, ctypes.c_uint(slot)))

    def slots(self) -> int:
        """The number of process slots that were ever used."""
        return int(self._c.simadmin_slots(self._handle))

    def is_locked(self, card: int) -> bool:
        """Whether another process holds the card's lock at present."""
        return bool(self._c.simadmin_is_locked(self._handle, ctypes.c_uint(card)))

    def process(self, slot: int, card: int) -> list[int] | None:
        """PID, bytes, managed bytes, contexts and ns of work of a living slot on a card."""
        figures = (ctypes.c_uint64 * 5)()
        alive = self._c.simadmin_process(self._handle, slot, ctypes.c_uint(card), figures)
        return list(figures) if alive else None
