"""The inventory of the node's cards: their properties, and which of them are missing or faulty."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from mizar_core import card as core
from mizar_nodeagent.card_health import CardHealth, KnownHealth, Readings, breaks_card
from mizar_nodeagent.mig import Instance

GONE: Final = "the card is gone"
DIVIDED: Final = (
    "the card is in MIG mode, so CUDA can use only its MIG devices: run NVIDIA's device plugin, "
    "not its DRA driver, with MIG strategy single or mixed, which advertises these instead"
)

UNREAD_FOR: Final = 2
"""Number of reads in a row in which NVML must list a card without any details before that counts as
a problem, or must not list it before its return counts as a reset: now and then a single call
fails."""

NO_READINGS: Final = Readings()
_LASTING: Final = ("uuid", "model", "memory_bytes", "numa")


@dataclass(frozen=True)
class Card(core.Card):
    """A physical card or a MIG device, identified by its UUID. `numa`: its NUMA nodes, if known.
    `instance`: the place of a MIG device; None for a whole card. `divided`: the card is divided
    into MIG devices.

    `driver`: version of its driver. `problem`: why no container should use it; empty if it may be
    used. `gone_since`: since when NVML has not listed it (monotonic seconds); None while it does.
    `readings`: NVML's figures about its health. A carving keeps none of these, since they change.
    `unread`: why NVML lists the card but reports nothing else about it; then no other field but the
    UUID is set. The numbers that the driver gives to other cards when one drops out (NVML's index,
    the minor number of the device node) are not kept here: see `CardSource.minors`.
    """

    model: str
    numa: tuple[int, ...] = ()
    driver: str = ""
    problem: str = ""
    gone_since: float | None = None
    readings: Readings = NO_READINGS
    instance: Instance | None = None
    divided: bool = False
    unread: str = ""

    def lasting(self) -> Card:
        """The card without the fields that change."""
        return Card(self.uuid, self.memory_bytes, self.model, self.numa)

    def to_dict(self) -> dict[str, Any]:
        """The card as a JSON object for the checkpoint, without the fields that change."""
        return {name: getattr(self, name) for name in _LASTING}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Card:
        """The card from the checkpoint's JSON object. Raises LookupError or TypeError if that is
        damaged."""
        return cls(**{name: body[name] for name in _LASTING} | {"numa": tuple(body["numa"])})


@dataclass(frozen=True)
class ProcessLoad:
    """What a process does on a card. `percent`: the highest percentage of the card's time that it
    used in a sample since the last query; 0 without a new sample. `memory_bytes`: what it holds of
    the card's memory; 0 if the driver cannot tell."""

    percent: int
    memory_bytes: int = 0


class CardSource(Protocol):
    """The interface by which cards are read: implemented by NVML's client, and by fakes in
    tests."""

    async def read(self, expected: Collection[str] = ()) -> Mapping[str, Card]:
        """The cards that answer now, by UUID. `expected`: UUIDs that are known to exist; while one
        of them does not answer, it is searched for anew now and then. Raises CardsUnknown."""
        ...

    async def minors(self, uuids: Collection[str]) -> Mapping[str, int]:
        """The present minor numbers of these cards' device nodes, by UUID. A MIG device has that of
        its card. A card that does not answer is left out. Raises CardsUnknown."""
        ...

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """Call `tell` with the card's UUID and the XID of each fault, for ever."""
        ...

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """Bytes of each process on these cards, by UUID and by PID on the node. A card that does
        not answer is left out. Raises CardsUnknown."""
        ...

    async def loads(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, ProcessLoad]]:
        """The load of each process on these cards, by UUID and by PID on the node. A card that does
        not report its processes' use of its time is left out. Raises CardsUnknown."""
        ...

    async def utilization(self, uuid: str) -> Mapping[int, float] | None:
        """The part of the card's time, from 0 to 1, that each process used in its samples of the
        last seconds, by PID on the node; one without work has none. None if the card does not
        report it, as a MIG device. Raises CardsUnknown."""
        ...

    async def free_bytes(self, uuid: str) -> int:
        """Bytes of the card's memory that are free. Raises CardsUnknown."""
        ...

    async def context_bytes(self, uuid: str) -> int:
        """Bytes that a CUDA context takes on the card; 0 if that cannot be measured."""
        ...


def is_out_of_use(card: Card, cards: Mapping[str, Card]) -> bool:
    """Whether the card is unavailable on purpose: it is divided into MIG devices, whose health is
    reported separately, or it is a MIG device of a card that has been divided differently since."""
    if card.divided:
        return True
    parent = cards.get(card.instance.card) if card.instance else None
    return card.problem == GONE and parent is not None and parent.problem != GONE


class CardInventory:
    """All cards ever seen, so that a card that falls off the bus is still known, as missing.

    `problem`: why the last read of NVML failed; None if it succeeded. `readings`: the figures of
    the last successful read, by UUID of the cards that answered. `clock` returns monotonic seconds.
    `ignored_xids`: XIDs that do not make a card Unhealthy.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, ignored_xids: Collection[int] = ()
    ) -> None:
        self.problem: str | None = "the cards have not been read yet"
        self.readings: Mapping[str, Readings] = {}
        self._clock = clock
        self._ignored = frozenset(ignored_xids)
        self._health: dict[str, CardHealth] = {}
        self._gone_since: dict[str, float] = {}
        self._cards: dict[str, Card] = {}
        self._missed: dict[str, int] = {}
        self._unread: dict[str, tuple[int, str]] = {}
        self._faults: dict[str, int] = {}

    def update(self, present: Mapping[str, Card]) -> None:
        """Note that NVML lists exactly these cards now."""
        self.problem = None
        unread = self._unread_of(present)
        listed = present.keys() | unread.keys()
        # A card that was missing has been reset, which clears its fault; but now and then a single
        # call fails.
        for uuid in listed & self._missed.keys():
            if self._missed[uuid] >= UNREAD_FOR:
                self._faults.pop(uuid, None)
        self._unread = {
            uuid: (self._unread.get(uuid, (0, ""))[0] + 1, why) for uuid, why in unread.items()
        }
        read = {uuid: card for uuid, card in present.items() if not card.unread}
        self.readings = {uuid: card.readings for uuid, card in read.items()}
        now = self._clock()
        for uuid, card in read.items():
            self._health.setdefault(uuid, CardHealth()).read(card.readings, now)
            self._cards[uuid] = replace(card, readings=NO_READINGS)
        self._gone_since = {
            uuid: self._gone_since.get(uuid, now) for uuid in self._cards.keys() - listed
        }
        missing = (self._cards.keys() | self._faults.keys()) - listed
        self._missed = {uuid: self._missed.get(uuid, 0) + 1 for uuid in missing}

    def _unread_of(self, present: Mapping[str, Card]) -> dict[str, str]:
        """Why NVML reports nothing about a card, by UUID, for each such card and its known
        instances: NVML cannot list these either, so they count as still there."""
        found = {uuid: card.unread for uuid, card in present.items() if card.unread}
        known = [(uuid, one.instance) for uuid, one in self._cards.items() if one.instance]
        return found | {uuid: found[one.card] for uuid, one in known if one.card in found}

    def fault(self, uuid: str, xid: int) -> None:
        """Note that the card has reported this XID."""
        if breaks_card(xid, self._ignored):
            self._faults[uuid] = xid

    def repaired(self, uuid: str) -> None:
        """Note that an administrator has declared the card reset or replaced while no agent ran."""
        self._faults.pop(uuid, None)
        self._health.pop(uuid, None)

    def restore(
        self,
        faults: Mapping[str, int],
        cards: Iterable[Card] = (),
        health: Mapping[str, KnownHealth] = MappingProxyType({}),
    ) -> None:
        """Take over an earlier agent's knowledge: the faults of cards, none of which has been reset
        since, its cards, and their health."""
        self._health.update({uuid: CardHealth(known) for uuid, known in health.items()})
        for uuid, xid in faults.items():
            self.fault(uuid, xid)
        self._cards.update({card.uuid: card for card in cards})

    def instance_of(self, uuid: str) -> Instance | None:
        """The place of the MIG device with this UUID; None for a whole card, and for a MIG device
        that was not read since the agent's start."""
        card = self._cards.get(uuid)
        return card.instance if card else None

    @property
    def expected(self) -> set[str]:
        """UUIDs of the cards that NVML should list. MIG devices come and go with their card's
        configuration, so those that were read are left out. Those from an earlier agent's
        checkpoint, which has no `instance`, are included until they are read: they may have to be
        found with their card."""
        return {uuid for uuid, card in self._cards.items() if card.instance is None}

    @property
    def faults(self) -> dict[str, int]:
        """The last XID of each faulty card, by UUID."""
        return dict(self._faults)

    @property
    def is_marked(self) -> bool:
        """Whether a card is Unhealthy by something that a new agent might not see again."""
        return bool(self._faults) or any(one.signs for one in self.health.values())

    @property
    def health(self) -> dict[str, KnownHealth]:
        """The part of each card's health that the checkpoint keeps, by UUID, if there is any."""
        known = {uuid: one.known for uuid, one in self._health.items()}
        return {uuid: one for uuid, one in known.items() if one != KnownHealth()}

    def cards(self) -> dict[str, Card]:
        """Every known card with its problem, if it has one: the last known one while NVML does not
        answer."""
        return {
            uuid: replace(
                card, problem=self._problem_of(uuid), gone_since=self._gone_since_of(uuid)
            )
            for uuid, card in self._cards.items()
        }

    def _gone_since_of(self, uuid: str) -> float | None:
        # While NVML does not answer, nobody knows whether the card is still gone: no pod loses it.
        return self._gone_since.get(uuid) if self.problem is None else None

    def _problem_of(self, uuid: str) -> str:
        if uuid in self._gone_since:
            return GONE
        card = self._cards[uuid]
        problems = self._health[uuid].problems if uuid in self._health else []
        reads, why = self._unread.get(uuid, (0, ""))
        if reads >= UNREAD_FOR:
            problems = [f"NVML reports nothing about it: {why}", *problems]
        if card.divided:
            problems = [DIVIDED, *problems]
        # A fault of a whole card counts for all its instances.
        for one in (uuid, *([card.instance.card] if card.instance else [])):
            if one in self._faults:
                problems = [f"the card reported XID {self._faults[one]}", *problems]
        return "; ".join(problems)
