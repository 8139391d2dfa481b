"""Physical cards: what is known of each, and which are broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from mizar_core import carve

PROGRAM_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the card, by NVIDIA's XID catalogue: illegal memory access etc."""

GONE: Final = "the card is gone"

_LASTING: Final = ("uuid", "model", "memory_bytes", "numa")


@dataclass(frozen=True)
class Card(carve.Card):
    """A physical card, known by its UUID. `numa`: its NUMA nodes, if known.

    `driver`: version of its driver; `problem`: why nobody should use it. A carving keeps neither,
    since both change. Its numbers (NVML's index, the minor number of its device node) are not here:
    the driver gives them to other cards when one drops out. See `CardSource.minors`.
    """

    model: str
    numa: tuple[int, ...] = ()
    driver: str = ""
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON for the checkpoint, without what changes."""
        return {name: getattr(self, name) for name in _LASTING}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Card:
        """From the checkpoint. Raises LookupError or TypeError when it is damaged."""
        return cls(**{name: body[name] for name in _LASTING} | {"numa": tuple(body["numa"])})


class CardSource(Protocol):
    """Where cards are read: NVML, or what a test puts in its place."""

    async def read(self) -> Mapping[str, Card]:
        """The cards that answer now, by UUID. Raises CardsUnknown."""
        ...

    async def minors(self, uuids: Collection[str]) -> Mapping[str, int]:
        """Minor numbers of these cards' device nodes as they are now, by UUID; a card that does not
        answer is left out. Raises CardsUnknown."""
        ...

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """Call `tell(uuid, xid)` for each fault, for ever."""
        ...

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """Bytes of each process on these cards, by UUID and by PID on the node. A card that does
        not answer is left out. Raises CardsUnknown."""
        ...

    async def context_bytes(self, uuid: str) -> int:
        """Bytes of a CUDA context on the card; 0 where it cannot be measured."""
        ...


class CardInventory:
    """All cards ever seen, so that one that falls off the bus is still known, as missing.

    `problem`: why the last read of NVML failed; None when it succeeded.
    """

    def __init__(self) -> None:
        self.problem: str | None = "the cards have not been read yet"
        self._cards: dict[str, Card] = {}
        self._present: frozenset[str] = frozenset()
        self._missed: frozenset[str] = frozenset()
        self._faults: dict[str, int] = {}

    def update(self, present: Mapping[str, Card]) -> None:
        """Only these cards answer now."""
        self.problem = None
        # A card that was missing has been reset, which clears its fault.
        for uuid in present.keys() & self._missed:
            self._faults.pop(uuid, None)
        self._cards.update(present)
        self._present = frozenset(present)
        self._missed = frozenset((self._cards.keys() | self._faults.keys()) - present.keys())

    def fault(self, uuid: str, xid: int) -> None:
        """The card has reported this XID."""
        if xid not in PROGRAM_XIDS:
            self._faults[uuid] = xid

    def restore(self, faults: Mapping[str, int]) -> None:
        """An earlier agent was told of these faults, and no card has been reset since."""
        self._faults.update(faults)

    @property
    def faults(self) -> dict[str, int]:
        """The last XID of each faulty card, by UUID."""
        return dict(self._faults)

    def cards(self) -> dict[str, Card]:
        """Every known card with its problem, if it has one."""
        return {
            uuid: replace(card, problem=self._problem_of(uuid))
            for uuid, card in self._cards.items()
        }

    def _problem_of(self, uuid: str) -> str:
        # While NVML does not answer, it is not known that a card is gone.
        if self.problem is None and uuid not in self._present:
            return GONE
        if uuid in self._faults:
            return f"the card reported XID {self._faults[uuid]}"
        return ""
