"""A slot directory for tests: limits and usage files, written by the layout that the header prints.

This is deliberately not the node agent's mirror: what is right here is right by the header alone.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[3]
FOREIGN = os.environ.get("SHIM_ARCH", "")  # see `make -C shim aarch64`
BUILD = ROOT / "build" / (f"shim-{FOREIGN}" if FOREIGN else "shim")


def card_uuid(number: int) -> str:
    """The UUID of the fake driver's card `number`."""
    return f"GPU-ab000000-0000-0000-0000-0000000000{number:02x}"


def emulated(
    command: list[str | Path], env: dict[str, str]
) -> tuple[list[str | Path], dict[str, str]]:
    """The command as it is run here: by an emulator, which is not to load what the program does."""
    if not FOREIGN:
        return command, env
    inner = ",".join(f"{name}={value}" for name, value in env.items() if name.startswith("LD_"))
    outer = {name: value for name, value in env.items() if not name.startswith("LD_")}
    outer["QEMU_LD_PREFIX"] = f"/usr/{FOREIGN}-linux-gnu"
    if inner:
        outer["QEMU_SET_ENV"] = inner
    return [f"qemu-{FOREIGN}", *command], outer


def load_layout() -> dict[str, Any]:
    """What build/shim/regions-layout prints."""
    command, env = emulated([BUILD / "regions-layout"], dict(os.environ))
    printed = subprocess.run(command, check=True, capture_output=True, env=env)
    layout: dict[str, Any] = json.loads(printed.stdout)
    return layout


@dataclass
class Card:
    """One card of the limits; memory in bytes, share in basis points."""

    uuid: str
    memory: int
    memory_mode: int = 0
    compute_mode: int = 0
    core_share: int = 10000
    priority: int = 0
    context_bytes: int = 0


@dataclass
class Slot:
    """One container's pair of files."""

    path: Path
    layout: dict[str, Any]
    seq: int = 0
    cards: list[Card] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.limits.write_bytes(bytes(self.constant("MIZAR_LIMITS_SIZE")))
        with self.usage.open("wb") as file:
            file.truncate(self.constant("MIZAR_USAGE_SIZE"))
            file.write(
                struct.pack(
                    "<8sIIII",
                    b"MIZARUSE",
                    self.constant("MIZAR_REGIONS_VERSION"),
                    self.constant("MIZAR_USAGE_SIZE"),
                    self.constant("MIZAR_CARD_MAX"),
                    self.constant("MIZAR_SLOT_MAX"),
                )
            )

    @property
    def limits(self) -> Path:
        return self.path / "limits"

    @property
    def usage(self) -> Path:
        return self.path / "usage"

    def constant(self, name: str) -> int:
        return int(self.layout["constants"][name])

    def offset(self, name: str) -> int:
        return int(self.layout["fields"][name][0])

    def set_limits(self, *cards: Card) -> None:
        """Writes the limits in place, under the seqlock, as the node agent does."""
        self.cards = list(cards)
        body = bytearray(self.limits.read_bytes())
        self._put(body, "mizar_limits.magic", b"MIZARLIM")
        self._put(body, "mizar_limits.version", self._u32(self.constant("MIZAR_REGIONS_VERSION")))
        self._put(body, "mizar_limits.size", self._u32(len(body)))
        self._put(body, "mizar_limits.state", self._u32(self.constant("MIZAR_STATE_READY")))
        self._put(body, "mizar_limits.card_count", self._u32(len(cards)))
        for index, card in enumerate(cards):
            self._put_card(body, index, card)
        self._put(body, "mizar_limits.crc", self._u32(self.crc(body)))
        self._write(body)

    def set_owner_wait(self, ms: int) -> None:
        """How long an allocation waits for a borrower to leave, at most."""
        body = bytearray(self.limits.read_bytes())
        self._put(body, "mizar_limits.owner_wait_ms", self._u32(ms))
        self._put(body, "mizar_limits.crc", self._u32(self.crc(body)))
        self._write(body)

    def crc(self, body: bytes | bytearray) -> int:
        first, end = self.constant("MIZAR_LIMITS_CRC_FROM"), self.constant("MIZAR_LIMITS_CRC_TO")
        return zlib.crc32(bytes(body[first:end]))

    def set_live(self, card: int, name: str, value: int, size: int = 4) -> None:
        """Sets one word of the live part."""
        at = self.offset("mizar_limits.live") + card * self.layout["sizes"]["mizar_limits_live"]
        with self.limits.open("r+b") as file:
            file.seek(at + self.offset(f"mizar_limits_live.{name}"))
            file.write(value.to_bytes(size, "little"))

    def set_asleep(self, value: int) -> None:
        """Whether a card of the container is lent while it sleeps."""
        with self.limits.open("r+b") as file:
            file.seek(self.offset("mizar_limits.asleep"))
            file.write(value.to_bytes(4, "little"))

    def used(self, card: int) -> int:
        """Bytes that the ledger says are taken on the card."""
        at = self.offset("mizar_usage.cards") + card * self.layout["sizes"]["mizar_usage_card"]
        return int.from_bytes(self.usage.read_bytes()[at + 8 : at + 16], "little") >> 21

    def look(self, card: int) -> None:
        """NVML was asked and reported nothing new, whatever code was used until now."""
        sizes = self.layout["sizes"]
        at = self.offset("mizar_usage.cards") + card * sizes["mizar_usage_card"]
        self.set_live(
            card, "code_seen", self._word(at + self.offset("mizar_usage_card.code_uses")), 8
        )

    def compute(self, card: int, name: str) -> int:
        """A word of the card's account of GPU time."""
        sizes = self.layout["sizes"]
        at = self.offset("mizar_usage.cards") + card * sizes["mizar_usage_card"]
        at += self.offset("mizar_usage_card.compute") + self.offset(f"mizar_compute.{name}")
        return self._word(at)

    def process(self, slot: int, card: int, name: str) -> int:
        """A word of what a process says about its use of the card."""
        return self._word(self._of_process(slot, card, name))

    def leave_dead(self, slot: int, card: int, **words: int) -> None:
        """Leave what a process that is gone said of its use of the card."""
        first = self.offset("mizar_usage.slots") + slot * self.layout["sizes"]["mizar_usage_slot"]
        state = first + self.offset("mizar_usage_slot.state")
        with self.usage.open("r+b", buffering=0) as file:
            file.seek(state)
            file.write(self._u32(self.constant("MIZAR_STATE_READY")))
            for name, value in words.items():
                file.seek(self._of_process(slot, card, name))
                file.write(struct.pack("<Q", value))
            file.seek(self.offset("mizar_usage.slot_high"))
            file.write(self._u32(slot + 1))

    def be(self, slot: int, pid: int) -> None:
        """The process was the last that the slot belonged to."""
        first = self.offset("mizar_usage.slots") + slot * self.layout["sizes"]["mizar_usage_slot"]
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        with self.usage.open("r+b", buffering=0) as file:
            for name, size, value in (("pid", 4, pid), ("start_time", 8, started)):
                file.seek(first + self.offset(f"mizar_usage_slot.{name}"))
                file.write(value.to_bytes(size, "little"))

    def said_of_itself(self, slot: int, name: str, size: int = 4) -> int:
        """A word by which the process in the slot introduced itself; of `size` bytes."""
        at = self.offset("mizar_usage.slots") + slot * self.layout["sizes"]["mizar_usage_slot"]
        at += self.offset(f"mizar_usage_slot.{name}")
        return int.from_bytes(self.usage.read_bytes()[at : at + size], "little")

    def _of_process(self, slot: int, card: int, name: str) -> int:
        sizes = self.layout["sizes"]
        at = self.offset("mizar_usage.slots") + slot * sizes["mizar_usage_slot"]
        at += self.offset("mizar_usage_slot.cards") + card * sizes["mizar_slot_card"]
        return int(at + self.offset(f"mizar_slot_card.{name}"))

    def _word(self, at: int) -> int:
        with self.usage.open("rb") as file:
            file.seek(at)
            return int.from_bytes(file.read(8), "little")

    def copied(self, card: int, kind: str) -> tuple[int, int]:
        """How many copies of that kind the container's processes counted, and how many bytes."""
        usage, sizes = self.usage.read_bytes(), self.layout["sizes"]
        first, size = self.offset("mizar_usage.copies"), sizes["mizar_copies"]
        slots = self.offset("mizar_usage.slots") + self.offset("mizar_usage_slot.copies")
        places = range(slots, len(usage), sizes["mizar_usage_slot"])
        of = self.offset("mizar_copies.card")
        own = [at for at in places if usage[at + of] == card + 1]
        at_kind = self.constant(f"MIZAR_{kind}") * sizes["mizar_copied"]
        pairs = [
            struct.unpack_from("<QQ", usage, at + at_kind) for at in (first + card * size, *own)
        ]
        return sum(count for count, _ in pairs), sum(size for _, size in pairs)

    def _write(self, body: bytearray) -> None:
        at = self.offset("mizar_limits.seq")
        self.seq += 2
        with self.limits.open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(self._u32(self.seq - 1))
            body[at : at + 4] = self._u32(self.seq - 1)
            file.seek(0)
            file.write(body)
            file.seek(at)
            file.write(self._u32(self.seq))

    def _put_card(self, body: bytearray, index: int, card: Card) -> None:
        base = self.offset("mizar_limits.cards") + index * self.layout["sizes"]["mizar_limits_card"]
        uuid_size = self.constant("MIZAR_UUID_SIZE")
        body[base : base + uuid_size] = card.uuid.encode().ljust(uuid_size, b"\0")
        for name, value, size in (
            ("memory_limit", card.memory, 8),
            ("memory_mode", card.memory_mode, 4),
            ("compute_mode", card.compute_mode, 4),
            ("core_share", card.core_share, 4),
            ("priority", card.priority, 4),
            ("context_bytes", card.context_bytes, 8),
        ):
            at = base + self.offset(f"mizar_limits_card.{name}")
            body[at : at + size] = value.to_bytes(size, "little")

    def _put(self, body: bytearray, name: str, value: bytes) -> None:
        at = self.offset(name)
        body[at : at + len(value)] = value

    @staticmethod
    def _u32(value: int) -> bytes:
        return struct.pack("<I", value)
