"""A machine with simulated cards: made once, then looked at and broken by tests and tools."""

import os
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from simgpu.admin import MACHINE, Admin, create_state
from simgpu.build import build
from simgpu.record import Recording

MIB = 1 << 20
DEFAULT_MODEL = "NVIDIA A100-SXM4-40GB"
CONTROL_NODES = ("nvidiactl", "nvidia-uvm")
_NAMESPACE = uuid.UUID("6f1d6a6e-9f0e-5a53-8e0b-2f7f5b1d7a10")

CLOCKS = {"real": 0, "manual": 1, "stepped": 2}

# What an A100 says of itself; any of it can be given to create() by name.
CARD_DEFAULTS = {
    "context_bytes": 300 * MIB,
    "context_ns": 0,
    "module_bytes": 2 * MIB,
    "function_bytes": MIB // 16,
    "handles_load": 1,
    "reserved_bytes": 0,
    "sm_count": 108,
    "compute_major": 8,
    "compute_minor": 0,
    "clock_mhz": 1410,
    "memory_clock_mhz": 1215,
    "bus_bits": 5120,
    "power_milliwatts": 60_000,
    "temperature_celsius": 35,
    "slowdown_celsius": 92,
    "nvlinks": 0,
    "nvlinks_down": 0,
    "remap_failed": 0,
    "slice_ns": 1_000_000,
    "switch_ns": 50_000,
    "period_ns": 166_666_667,
    "kernel_ns": 5_000,
    "link_bytes_per_us": 25_000,
    "memory_bytes_per_us": 1_300_000,
}

# What a card may do to those who share it, at the unkind end; no figure was measured on a real one.
HARSH = {
    "slice_ns": 500_000,
    "slice_spread_ns": 5_500_000,
    "switch_ns": 50_000,
    "switch_spread_ns": 450_000,
    "uninterrupted": 1,
    "launch_ns": 3_000,
    "launch_spread_ns": 5_000,
    "first_launch_ns": 2_000_000,
    "event_ns": 1_000,
    "event_spread_ns": 2_000,
    "event_grain_ns": 512,
    "event_drift_ppm": 50,
    "queue_kernels": 1_000,
    "clock_swing_percent": 30,
    "copying_percent": 20,
    "return_ns": 300_000_000,
    "scattered_bytes": 64 * MIB,
    "nvml_ns": 5_000_000,
    "nvml_spread_ns": 45_000_000,
    "nvml_stale_ns": 20_000_000,
    "nvml_missing": 7,
}
PROFILES: dict[str, dict[str, int]] = {
    "ideal": dict.fromkeys(HARSH.keys() - CARD_DEFAULTS, 0),
    "harsh": HARSH,
}


@dataclass(frozen=True)
class Process:
    """A living process on a card. Sizes are bytes; pid is 0 where this one may not see it."""

    pid: int
    memory: int
    managed: int
    contexts: int
    work_ns: int  # what the card has done for it, in simulated time


@dataclass(frozen=True)
class Card:
    """A card as it is now. Sizes are bytes."""

    index: int
    uuid: str
    name: str
    minor: int
    total: int
    used: int
    lost: bool
    xid: int  # the last critical error, 0 for none since the last heal
    processes: tuple[Process, ...]

    @property
    def healthy(self) -> bool:
        return not self.lost and not self.xid


@dataclass(frozen=True)
class Busy:
    """A card's time line so far, in simulated ns."""

    work_ns: int
    switches: int
    now_ns: int


@dataclass(frozen=True)
class Health:
    """What a device plugin asks about a card."""

    uuid: str
    minor: int
    healthy: bool


def card_uuid(seed: str, index: int) -> str:
    """The UUID of a card: the same for the same seed and index."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}"


def create(
    directory: Path | str,
    cards: int = 2,
    memory_mib: int = 16384,
    model: str = DEFAULT_MODEL,
    seed: str = "simgpu",
    *,
    clock: Literal["real", "manual", "stepped"] = "real",
    cuda_version: int = 13000,
    driver_version: str = "580.65.06",
    profile: str | None = None,
    **figures: int,
) -> "Machine":
    """Lay out a machine under `directory`: state, dev/nvidia*, driver/lib64/lib*.so.1.

    `profile` is "ideal" or "harsh" (see HARSH), else what SIMGPU_PROFILE says, else "ideal".
    `figures` override CARD_DEFAULTS and the profile's. Simulated time follows the real clock, or is
    moved by tick() alone ("manual"), or by whoever waits for the cards ("stepped").

    Raises FileExistsError where there is a machine already, KeyError for an unknown figure or
    profile."""
    directory = Path(directory)
    figures = _defaults(profile, figures) | figures
    build(directory / "driver" / "lib64")
    _make_nodes(directory / "dev", cards)
    draft = directory / ".state.new"
    draft.unlink(missing_ok=True)
    create_state(draft, cards)
    with Machine(directory, state=draft) as machine:
        machine.admin.set_number(MACHINE, "cuda_version", cuda_version)
        machine.admin.set_number(MACHINE, "clock_mode", CLOCKS[clock])
        machine.admin.set_text(MACHINE, "driver_version", driver_version)
        for index in range(cards):
            machine._describe(index, seed, model, memory_mib * MIB, figures)
    try:
        os.link(draft, directory / "state")  # whole or not at all, and never over another
    finally:
        draft.unlink()
    return Machine(directory)


def _defaults(profile: str | None, figures: Collection[str]) -> dict[str, int]:
    """All figures of a card of that profile. KeyError: no such profile, or no such figure."""
    profile = profile or os.environ.get("SIMGPU_PROFILE") or "ideal"
    if profile not in PROFILES:
        raise KeyError(f"unknown profile {profile!r} of a card; there are {sorted(PROFILES)}")
    known = CARD_DEFAULTS | PROFILES[profile]
    if unknown := set(figures) - set(known):
        raise KeyError(f"unknown card figures {sorted(unknown)}; there are {sorted(known)}")
    return known


def _make_nodes(folder: Path, cards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*CONTROL_NODES, *(f"nvidia{minor}" for minor in range(cards))):
        _make_node(folder / name)


def _make_node(path: Path) -> None:
    """A device node like /dev/null where this process may make one, else a plain file."""
    if path.exists():
        return
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
        path.chmod(0o666)
    except PermissionError:
        path.touch(0o666)


def environment(directory: Path | str) -> dict[str, str]:
    """Variables with which a program outside any container finds the machine in `directory`."""
    directory = Path(directory)
    return {
        "LD_LIBRARY_PATH": str(directory / "driver" / "lib64"),
        "SIMGPU_STATE": str(directory / "state"),
        "SIMGPU_DEV": str(directory / "dev"),
    }


class Machine:
    """The machine in a directory made by create(). Raises StateError where there is none."""

    def __init__(self, directory: Path | str, *, state: Path | None = None) -> None:
        self.directory = Path(directory)
        self.admin = Admin(state or self.directory / "state")

    def close(self) -> None:
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cards(self) -> list[Card]:
        """Every card, lost ones too."""
        return [self._card(index) for index in range(self.admin.card_count())]

    def health(self) -> list[Health]:
        """Every card's health, without looking at its memory."""
        admin = self.admin
        return [
            Health(
                uuid=admin.text(index, "uuid"),
                minor=admin.number(index, "minor"),
                healthy=not admin.number(index, "lost") and not admin.number(index, "last_xid"),
            )
            for index in range(admin.card_count())
        ]

    def card(self, uuid: str) -> Card:
        """The card of that UUID, KeyError if there is none."""
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise KeyError(f"no card {uuid}; there are {[card.uuid for card in self.cards]}")

    def set_health(self, uuid: str, xid: int) -> None:
        """Raise a critical error (an XID event), or with 0 call the card healthy again."""
        index = self.card(uuid).index
        self.admin.set_number(index, "last_xid", xid)
        if xid:
            self.admin.raise_xid(index, xid)

    def set_figure(self, uuid: str, figure: str, value: int) -> None:
        """Change one of CARD_DEFAULTS, such as its temperature."""
        self.admin.set_number(self.card(uuid).index, figure, value)

    def remove(self, uuid: str) -> None:
        """The card falls off the bus: NVML_ERROR_GPU_IS_LOST."""
        self.admin.set_number(self.card(uuid).index, "lost", 1)

    def restore(self, uuid: str) -> None:
        """A removed card comes back, healthy."""
        index = self.card(uuid).index
        self.admin.set_number(index, "last_xid", 0)
        self.admin.set_number(index, "lost", 0)

    def renumber(self, *uuids: str) -> None:
        """The driver gives these cards, and then the others, minor numbers from 0 on: as where a
        card dropped out, and came back behind the others. Their places on the bus stay."""
        cards = self.cards
        order = [self.card(uuid) for uuid in uuids]
        order += [card for card in cards if card.uuid not in uuids]
        for minor, card in enumerate(order):
            self.admin.set_number(card.index, "minor", minor)

    def tick(self, ns: int) -> None:
        """Move a clock that is not real."""
        self.admin.tick(ns)

    def busy(self, uuid: str) -> Busy:
        """What the card has done so far."""
        return Busy(*self.admin.busy(self.card(uuid).index))

    def work(self, card: int) -> tuple[int, dict[int, int]]:
        """Simulated time in ns, and what the card has done until that moment for each living
        process, by the PID that it has in its own eyes."""
        return self.admin.works(card)

    def record(self, card: int, seconds: float) -> Recording:
        """The card's time line from now on, for at most so many seconds."""
        return Recording(self.admin, card, seconds)

    def watch(self, card: int, most: int) -> None:
        """From now on, look at every allocation whether processes hold more than `most` bytes
        together, those who die as well until the card has their memory back; 0 ends it. Who began
        with SIMGPU_UNWATCHED is left out. Forgets what was seen before."""
        for field, value in (("watch_bytes", most), ("over_bytes", 0), ("over_count", 0)):
            self.admin.set_number(card, field, value)

    def over(self, card: int) -> tuple[int, int]:
        """By how many bytes they ever held more than that, and how often they were seen to."""
        admin = self.admin
        return admin.number(card, "over_bytes"), admin.number(card, "over_count")

    def _card(self, index: int) -> Card:
        admin = self.admin
        total, _, used = admin.usage(index)
        return Card(
            index=index,
            uuid=admin.text(index, "uuid"),
            name=admin.text(index, "name"),
            minor=admin.number(index, "minor"),
            total=total,
            used=used,
            lost=bool(admin.number(index, "lost")),
            xid=admin.number(index, "last_xid"),
            processes=tuple(self._processes(index)),
        )

    def _processes(self, card: int) -> Iterator[Process]:
        for slot in range(self.admin.slots()):
            figures = self.admin.process(slot, card)
            if figures and any(figures[1:]):
                yield Process(*figures)

    def _describe(
        self, index: int, seed: str, model: str, memory: int, figures: dict[str, int]
    ) -> None:
        self.admin.set_text(index, "uuid", card_uuid(seed, index))
        self.admin.set_text(index, "name", model)
        for field, value in (figures | {"minor": index, "memory_bytes": memory}).items():
            self.admin.set_number(index, field, value)
