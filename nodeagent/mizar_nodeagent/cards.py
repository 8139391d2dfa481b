"""Physical cards: what is known of each, and which are broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

PROGRAM_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the card, by NVIDIA's XID catalogue: illegal memory access etc."""


@dataclass(frozen=True)
class CardFacts:
    """A card: `minor` numbers its device node, `problem` says why nobody should use it; `driver` is
    the version of its driver."""

    uuid: str
    name: str
    memory_bytes: int
    minor: int
    problem: str = ""
    driver: str = ""


class CardSource(Protocol):
    """Where cards are read: NVML, or what a test puts in its place."""

    async def read(self) -> Mapping[str, CardFacts]:
        """The cards that answer now, by UUID. Raises CardsUnknown."""
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
        self._facts: dict[str, CardFacts] = {}
        self._present: frozenset[str] = frozenset()
        self._faults: dict[str, int] = {}

    def update(self, present: Mapping[str, CardFacts]) -> None:
        """Only these cards answer now."""
        self.problem = None
        # A card that was missing has been reset, which clears its fault.
        for uuid in present.keys() - self._present:
            self._faults.pop(uuid, None)
        self._facts.update(present)
        self._present = frozenset(present)

    def fault(self, uuid: str, xid: int) -> None:
        """The card has reported this XID."""
        if xid not in PROGRAM_XIDS:
            self._faults[uuid] = xid

    def facts(self) -> dict[str, CardFacts]:
        """Every known card with its problem, if it has one."""
        return {
            uuid: replace(card, problem=self._problem_of(uuid))
            for uuid, card in self._facts.items()
        }

    def _problem_of(self, uuid: str) -> str:
        # While NVML does not answer, it is not known that a card is gone.
        if self.problem is None and uuid not in self._present:
            return "the card is gone"
        if uuid in self._faults:
            return f"the card reported XID {self._faults[uuid]}"
        return ""
