"""The layout of the limits and usage files as ctypes structures, mirroring the header
shim/include/mizar_regions.h.

A test compares every field with the output of build/shim/regions-layout. The header describes the
fields, and how the files are read and written.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int64, c_uint8, c_uint32, c_uint64
from typing import Final

VERSION: Final = 1
"""Version of the files that this agent creates: that of the shim that it installs."""
SERVED: Final = frozenset({1})
"""Versions of the files that this agent reads, and writes without changing the version: its own,
and the previous one if there is one, which containers created before an upgrade have."""
LIMITS_MAGIC: Final = b"MIZARLIM"
USAGE_MAGIC: Final = b"MIZARUSE"

CARD_MAX: Final = 16
SLOT_MAX: Final = 1024

STATE_READY: Final = 1

MEMORY_MODES: Final = {"Hard": 0, "Oversubscribe": 1}
COMPUTE_MODES: Final = {"None": 0, "Hard": 1, "Soft": 2, "Weighted": 3}
COMPUTE_STOPPED: Final = 4
"""Compute mode of a card on which the shim must start no new work: the container has lost it."""
PRIORITY_NOTICE: Final = 2**32 - 1
"""In place of a borrower's priority on a card: it is in its notice period, during which active
owners of the card do not pause it."""

BYTES_MAX: Final = (1 << 43) - 1
"""Most bytes to which a container can be limited on a card: the ledger has 43 bits for them."""
CODE_PAGE: Final = 2 << 20
"""Bytes of the pages in which drivers allocate memory for code."""
CODE_PER_PAGE: Final = 4
"""Number of functions that are assumed to fit in a page: most need much less than 512 KiB."""
SHIM_PAST: Final = 2**32 - 1
"""In place of a process's shim version: the process has a second driver, whose calls the shim does
not limit."""

# Kinds of copies, as indices of Copies.kinds.
COPY_TO_DEVICE: Final = 0
COPY_TO_HOST: Final = 1
COPY_DEVICES: Final = 2
COPY_OTHER: Final = 3
MEMSET: Final = 4
COPY_KINDS: Final = 5


LIMITS_SIZE: Final = 8192
CRC_FROM: Final = 24
CRC_TO: Final = 4096
USAGE_SIZE: Final = 1060864


def slot_lock(index: int) -> int:
    """Offset of the byte of the usage file that the process in slot `index` keeps locked."""
    return 12288 + 1024 * index


def code_bytes(uses: int) -> int:
    """Most bytes of a card that the code of so many functions takes, unless it is unusually
    large."""
    return -(-uses // CODE_PER_PAGE) * CODE_PAGE


class LimitsCard(ctypes.LittleEndianStructure):
    _fields_ = (
        ("uuid", c_char * 64),
        ("memory_limit", c_uint64),
        ("memory_physical", c_uint64),
        ("memory_mode", c_uint32),
        ("compute_mode", c_uint32),
        ("core_share", c_uint32),
        ("priority", c_uint32),
        ("context_bytes", c_uint64),
        ("reserved", c_uint8 * 24),
    )


class LimitsLive(ctypes.LittleEndianStructure):
    _fields_ = (
        ("spare_share", c_uint32),
        ("paused", c_uint32),
        ("active_weight", c_uint32),
        ("beat", c_uint32),
        ("unaccounted_bytes", c_uint64),
        ("window", c_uint64),
        ("wake", c_uint32),
        ("borrowed", c_uint32),
        ("code_seen", c_uint64),
        ("reserved", c_uint8 * 80),
    )


class Limits(ctypes.LittleEndianStructure):
    _fields_ = (
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("size", c_uint32),
        ("seq", c_uint32),
        ("crc", c_uint32),
        ("state", c_uint32),
        ("card_count", c_uint32),
        ("body_version", c_uint32),
        ("heartbeat_ms", c_uint32),
        ("owner_wait_ms", c_uint32),
        ("reserved0", c_uint8 * 20),
        ("pod_namespace", c_char * 64),
        ("pod_name", c_char * 256),
        ("pod_uid", c_char * 64),
        ("container", c_char * 64),
        ("slot_name", c_char * 64),
        ("reserved1", c_uint8 * 448),
        ("cards", LimitsCard * CARD_MAX),
        ("reserved2", c_uint8 * 1024),
        ("live", LimitsLive * CARD_MAX),
        ("asleep", c_uint32),
        ("reserved3", c_uint8 * 2044),
    )


class Ledger(ctypes.LittleEndianStructure):
    _fields_ = (("lo", c_uint64), ("hi", c_uint64))


class Held(ctypes.LittleEndianStructure):
    _fields_ = (("bytes", c_uint64), ("seq", c_uint64))


class Compute(ctypes.LittleEndianStructure):
    _fields_ = (
        ("paid_until", c_uint64),
        ("busy_until", c_uint64),
        ("charged_ns", c_uint64),
        ("wanted_at", c_uint64),
        ("longest_ns", c_uint64),
        ("waited_ns", c_uint64),
        ("longest_at", c_uint64),
        ("load", c_uint64),
        ("uncharged_ns", c_uint64),
        ("turn", c_uint64),
        ("turn_wanted", c_uint64),
        ("window_end", c_uint64),
        ("work_end", c_uint64),
        ("over", c_int64),
        ("reserved", c_uint8 * 144),
    )


class UsageCard(ctypes.LittleEndianStructure):
    _fields_ = (
        ("ledger", Ledger),
        ("reserved0", c_uint8 * 112),
        ("peak_bytes", c_uint64),
        ("refused", c_uint64),
        ("settled", c_uint64),
        ("learned_contexts", c_uint64 * 3),
        ("code_uses", c_uint64),
        ("reserved1", c_uint8 * 72),
        ("compute", Compute),
    )


class SlotCard(ctypes.LittleEndianStructure):
    _fields_ = (
        ("absent_bytes", c_uint64),
        ("gpu_time_ns", c_uint64),
        ("open_since", c_uint64),
        ("open_until", c_uint64),
    )


class Copied(ctypes.LittleEndianStructure):
    _fields_ = (("count", c_uint64), ("bytes", c_uint64))


class Copies(ctypes.LittleEndianStructure):
    _fields_ = (
        ("kinds", Copied * COPY_KINDS),
        ("card", c_uint64),
        ("reserved", c_uint8 * 40),
    )


class UsageSlot(ctypes.LittleEndianStructure):
    _fields_ = (
        ("pid", c_uint32),
        ("state", c_uint32),
        ("start_time", c_uint64),
        ("generation", c_uint64),
        ("pid_ns", c_uint64),
        ("attached_ns", c_uint64),
        ("uid", c_uint32),
        ("shim_version", c_uint32),
        ("comm", c_char * 16),
        ("code_begun", c_uint32 * CARD_MAX),
        ("held", Held * CARD_MAX),
        ("cards", SlotCard * CARD_MAX),
        ("copies", Copies),
    )


_USAGE_HEAD = (
    ("magic", c_char * 8),
    ("version", c_uint32),
    ("size", c_uint32),
    ("card_max", c_uint32),
    ("slot_max", c_uint32),
    ("slot_high", c_uint32),
    ("attached", c_uint32),
    ("no_slot", c_uint32),
    ("shim_version", c_uint32),
    ("reserved", c_uint8 * 2008),
    ("copies", Copies * CARD_MAX),
    ("cards", UsageCard * CARD_MAX),
)


class UsageHead(ctypes.LittleEndianStructure):
    """All of the usage file but its process slots, most of which are never used."""

    _fields_ = _USAGE_HEAD


class Usage(ctypes.LittleEndianStructure):
    _fields_ = (*_USAGE_HEAD, ("slots", UsageSlot * SLOT_MAX))
