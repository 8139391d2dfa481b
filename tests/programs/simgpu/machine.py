"""A machine with simulated cards: creates it, reads its state, and makes cards fail, for tests and
tools."""

import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, Self

from simgpu import mig
from simgpu.build import build
from simgpu.mig import MINORS, Profile, minors_file
from simgpu.record import Recording
from simgpu.state_file import MACHINE, StateFile, create_state

MIB = 1 << 20
DEFAULT_MODEL = "NVIDIA A100-SXM4-40GB"
CONTROL_NODES = ("nvidiactl", "nvidia-uvm")
_NAMESPACE = uuid.UUID("6f1d6a6e-9f0e-5a53-8e0b-2f7f5b1d7a10")

CLOCKS = {"real": 0, "manual": 1, "stepped": 2}

Strategy = Literal["none", "single", "mixed"]
"""How the device plugin announces MIG instances: not at all, as whole cards, or by their size."""

# The properties of an A100. Each of them can be passed to create() by name.
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

# The worst behaviour of a card towards processes that share it; not measured on a real card.
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
    "nvml_foreign": 1,
}
PROFILES: dict[str, dict[str, int]] = {
    "ideal": dict.fromkeys(HARSH.keys() - CARD_DEFAULTS, 0),
    "harsh": HARSH,
}


@dataclass(frozen=True)
class Process:
    """A living process on a card. Sizes are bytes; pid is 0 if this process may not see it."""

    pid: int
    memory: int
    managed: int
    contexts: int
    work_ns: int  # ns of the card's work for it, in simulated time


@dataclass(frozen=True)
class Card:
    """The present state of a card or a MIG instance; an instance has its card's UUID as `parent`,
    and its size as `profile`. Sizes are bytes."""

    index: int
    uuid: str
    name: str
    minor: int
    total: int
    used: int
    lost: bool
    xid: int  # the last critical error since the last heal; 0: none
    processes: tuple[Process, ...]
    parent: str = ""
    profile: str = ""

    @property
    def healthy(self) -> bool:
        return not self.lost and not self.xid


@dataclass(frozen=True)
class Busy:
    """The card's activity so far, in simulated ns."""

    work_ns: int
    switches: int
    now_ns: int


@dataclass(frozen=True)
class Health:
    """What the device plugin needs to know of a card or MIG instance. `minor`: that of the card;
    `nodes`: names of all its device nodes; `profile`: of an instance; `divided`: the card has
    instances; `numa`: its NUMA node, if known; `ailing`: NVML shows a sign of a fault that the
    device plugin does not look at (heat, a dead NVLink, a row of memory that was not replaced)."""

    uuid: str
    minor: int
    healthy: bool
    nodes: tuple[str, ...]
    profile: str = ""
    divided: bool = False
    numa: int | None = None
    ailing: bool = False


def card_uuid(seed: str, index: int) -> str:
    """The UUID of a card, which is the same for the same seed and index."""
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
    """Create a machine under `directory`: state, dev/nvidia*, driver/lib64/lib*.so.1.

    `profile` is "ideal" or "harsh" (see HARSH); by default SIMGPU_PROFILE, else "ideal". `figures`
    override CARD_DEFAULTS and the profile's. Simulated time follows the real clock, or is advanced
    only by tick() ("manual"), or by every thread that waits for the cards ("stepped"). Raises
    FileExistsError if there is a machine already, KeyError for an unknown figure or profile."""
    directory = Path(directory)
    figures = _defaults(profile, figures) | figures
    build(directory / "driver" / "lib64")
    _make_nodes(directory / "dev", [*CONTROL_NODES, *(f"nvidia{one}" for one in range(cards))])
    (directory / MINORS).parent.mkdir(parents=True, exist_ok=True)
    (directory / MINORS).write_text(minors_file(cards))
    draft = directory / ".state.new"
    draft.unlink(missing_ok=True)
    create_state(draft, cards)
    with Machine(directory, state=draft) as machine:
        machine.state.set_number(MACHINE, "cuda_version", cuda_version)
        machine.state.set_number(MACHINE, "clock_mode", CLOCKS[clock])
        machine.state.set_text(MACHINE, "driver_version", driver_version)
        for index in range(cards):
            machine._describe(index, seed, model, memory_mib * MIB, figures)
    try:
        os.link(draft, directory / "state")  # atomic, and never over an existing file
    finally:
        draft.unlink()
    return Machine(directory)


def _defaults(profile: str | None, figures: Collection[str]) -> dict[str, int]:
    """All figures of a card of that profile. Raises KeyError for an unknown profile or figure."""
    profile = profile or os.environ.get("SIMGPU_PROFILE") or "ideal"
    if profile not in PROFILES:
        raise KeyError(f"unknown profile {profile!r} of a card; there are {sorted(PROFILES)}")
    known = CARD_DEFAULTS | PROFILES[profile]
    if unknown := set(figures) - set(known):
        raise KeyError(f"unknown card figures {sorted(unknown)}; there are {sorted(known)}")
    return known


def _make_nodes(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _make_node(folder / name)


def _make_node(path: Path) -> None:
    """Make a device node like /dev/null if this process may make one, otherwise a plain file."""
    if path.exists():
        return
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
        path.chmod(0o666)
    except PermissionError:
        path.touch(0o666)


def environment(directory: Path | str) -> dict[str, str]:
    """The environment by which a program outside a container finds the machine in `directory`."""
    directory = Path(directory)
    return {
        "LD_LIBRARY_PATH": str(directory / "driver" / "lib64"),
        "SIMGPU_STATE": str(directory / "state"),
        "SIMGPU_DEV": str(directory / "dev"),
    }


class Machine:
    """The machine in a directory made by create(). Raises StateError if there is none."""

    FIGURES = tuple(CARD_DEFAULTS | HARSH)
    """Names of the properties of a card."""

    def __init__(self, directory: Path | str, *, state: Path | None = None) -> None:
        self.directory = Path(directory)
        self.state = StateFile(state or self.directory / "state")

    def close(self) -> None:
        self.state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cards(self) -> list[Card]:
        """All cards, including lost ones."""
        return [self._card(index) for index in self._numbers() if not self.parent(index)]

    @property
    def instances(self) -> list[Card]:
        """All MIG instances."""
        return [self._card(index) for index in self._numbers() if self.parent(index)]

    def health(self) -> list[Health]:
        """The health of all cards and instances, without computing their memory usage."""
        return [self._health(index) for index in self._numbers()]

    def card(self, uuid: str) -> Card:
        """The card or MIG instance of that UUID. Raises KeyError if there is none."""
        found = [*self.cards, *self.instances]
        for card in found:
            if card.uuid == uuid:
                return card
        raise KeyError(f"no card {uuid}; there are {[card.uuid for card in found]}")

    def divide(self, uuid: str, *profiles: str) -> list[str]:
        """Divide a card by MIG into instances of these sizes, such as 1g.5gb, which replace those
        that it has. Without sizes, the card becomes whole again. Returns the instances' UUIDs.
        Raises ValueError if they do not fit the card or the card is in use."""
        return mig.divide(self, uuid, [Profile.parse(name) for name in profiles])

    @property
    def mig_strategy(self) -> Strategy:
        """How the device plugin offers instances: none, single or mixed."""
        return self.state.text(MACHINE, "mig_strategy") or "none"  # type: ignore[return-value]

    @mig_strategy.setter
    def mig_strategy(self, strategy: Strategy) -> None:
        self.state.set_text(MACHINE, "mig_strategy", strategy)

    def set_numa(self, uuid: str, node: int | None) -> None:
        """Set the NUMA node of the card."""
        self.state.set_number(self.card(uuid).index, "numa", 0 if node is None else node + 1)

    def set_health(self, uuid: str, xid: int) -> None:
        """Raise a critical error (an XID event), or with 0 call the card healthy again."""
        index = self.card(uuid).index
        self.state.set_number(index, "last_xid", xid)
        if xid:
            self.state.raise_xid(index, xid)

    def set_figure(self, uuid: str, figure: str, value: int) -> None:
        """Change one of CARD_DEFAULTS, such as the card's temperature."""
        self.state.set_number(self.card(uuid).index, figure, value)

    def remove(self, uuid: str) -> None:
        """Make the card fall off the bus: NVML_ERROR_GPU_IS_LOST."""
        self.state.set_number(self.card(uuid).index, "lost", 1)

    def restore(self, uuid: str) -> None:
        """Bring a removed card back, healthy."""
        index = self.card(uuid).index
        self.state.set_number(index, "last_xid", 0)
        self.state.set_number(index, "lost", 0)

    def replace(self, uuid: str) -> str:
        """Put a new card, healthy, in the place of this one, as happens while the machine is
        switched off. Returns the new card's UUID."""
        index = self.card(uuid).index
        new = card_uuid(uuid, index)
        self.state.set_text(index, "uuid", new)
        for field in ("last_xid", "lost", "nvlinks_down", "remap_failed"):
            self.state.set_number(index, field, 0)
        return new

    def renumber(self, *uuids: str) -> None:
        """Give these cards, and after them the others, minor numbers from 0 on, as happens when a
        card drops out and comes back behind the others. Their places on the bus do not change."""
        cards = self.cards
        order = [self.card(uuid) for uuid in uuids]
        order += [card for card in cards if card.uuid not in uuids]
        for minor, card in enumerate(order):
            self.state.set_number(card.index, "minor", minor)
        for instance in self.instances:
            mig.place(self, instance.index)

    def set_minor(self, uuid: str, minor: int) -> None:
        """Give the card this minor number, which no other card has, as happens when it comes back
        while the others are in use."""
        self.make_nodes([f"nvidia{minor}"])
        self.state.set_number(self.card(uuid).index, "minor", minor)

    def tick(self, ns: int) -> None:
        """Advance a clock that is not real."""
        self.state.tick(ns)

    def busy(self, uuid: str) -> Busy:
        """The card's activity so far."""
        return Busy(*self.state.busy(self.card(uuid).index))

    def work(self, card: int) -> tuple[int, dict[int, int]]:
        """Returns the simulated time (ns), and the ns of work that the card has done until then for
        each living process, by the PID that the process sees itself."""
        return self.state.works(card)

    def record(self, card: int, seconds: float) -> Recording:
        """Record the card's time line from now on, for at most that many seconds."""
        return Recording(self.state, card, seconds)

    def watch(self, card: int, most: int) -> None:
        """From now on, check at every allocation whether processes hold more than `most` bytes
        together; 0 turns the check off.

        A dying process counts until the kernel has released its slot. Processes that were started
        with SIMGPU_UNWATCHED do not count. The results of an earlier watch are dropped.
        """
        for field, value in (("watch_bytes", most), ("over_bytes", 0), ("over_count", 0)):
            self.state.set_number(card, field, value)

    def over(self, card: int) -> tuple[int, int]:
        """The largest excess (bytes) over the watched limit, and how often there was one."""
        state = self.state
        return state.number(card, "over_bytes"), state.number(card, "over_count")

    def _numbers(self) -> Iterator[int]:
        """The numbers of all cards and all existing MIG instances."""
        for index in range(self.state.card_count()):
            if not (self.parent(index) and self.state.number(index, "lost")):
                yield index

    def parent(self, index: int) -> int:
        """The number of a MIG instance's card + 1; 0 for a whole card."""
        return self.state.number(index, "parent")

    def make_nodes(self, names: Iterable[str]) -> None:
        """Make device nodes of these names, unless they exist."""
        _make_nodes(self.directory / "dev", names)

    def _health(self, index: int) -> Health:
        state = self.state
        parent = self.parent(index)
        whole = parent - 1 if parent else index
        minor, numa = state.number(whole, "minor"), state.number(whole, "numa")
        caps = [state.number(index, f"{what}_capability") for what in ("gpu", "compute")]
        ill = [state.number(one, what) for one in (index, whole) for what in ("lost", "last_xid")]
        return Health(
            uuid=state.text(index, "uuid"),
            minor=minor,
            healthy=not any(ill),
            nodes=(f"nvidia{minor}", *(mig.capability_nodes(caps) if parent else ())),
            profile=state.text(index, "profile"),
            divided=bool(state.number(index, "divided")),
            numa=numa - 1 if numa else None,
            ailing=self._is_ailing(whole),
        )

    def _is_ailing(self, index: int) -> bool:
        names = ("temperature_celsius", "slowdown_celsius", "nvlinks_down", "remap_failed")
        celsius, slowdown, *faults = (self.state.number(index, name) for name in names)
        return celsius >= slowdown or any(faults)

    def _card(self, index: int) -> Card:
        state = self.state
        parent = self.parent(index)
        total, _, used = state.usage(index)
        return Card(
            index=index,
            uuid=state.text(index, "uuid"),
            name=state.text(index, "name"),
            minor=state.number(index, "minor"),
            total=total,
            used=used,
            lost=bool(state.number(index, "lost")),
            xid=state.number(index, "last_xid"),
            processes=tuple(self.processes(index).values()),
            parent=state.text(parent - 1, "uuid") if parent else "",
            profile=state.text(index, "profile"),
        )

    def is_locked(self) -> bool:
        """Whether a process holds a card's lock at present. If a process is stopped while it holds
        the lock, every process that uses the card stops."""
        return any(self.state.is_locked(card) for card in self._numbers())

    def processes(self, card: int) -> dict[int, Process]:
        """The living processes on the card of that index, by their slots in the state file."""
        slots = {slot: self.process(slot, card) for slot in range(self.state.slots())}
        return {slot: one for slot, one in slots.items() if one and any(astuple(one)[1:])}

    def process(self, slot: int, card: int) -> Process | None:
        """The process in that slot, with its usage of the card of that index. Its pid is 0 if it is
        dead and its memory was not given back yet; the next process that looks at the card gives it
        back."""
        figures = self.state.process(slot, card)
        return Process(*figures) if figures else None

    def _describe(
        self, index: int, seed: str, model: str, memory: int, figures: dict[str, int]
    ) -> None:
        self.state.set_text(index, "uuid", card_uuid(seed, index))
        self.state.set_text(index, "name", model)
        for field, value in (figures | {"minor": index, "memory_bytes": memory}).items():
            self.state.set_number(index, field, value)
