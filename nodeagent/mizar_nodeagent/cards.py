"""Physical cards: what is known of each, and which are broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

# Faults of a program, not of the card (NVIDIA's XID catalogue): wrong memory access and the like.
HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})


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
    """Where cards are read: NVML, or a test's own."""

    async def read(self) -> Mapping[str, CardFacts]:
        """The cards that answer now, by UUID. Raises CardsUnknown."""
        ...

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """Call `tell(uuid, xid)` for each fault, for ever."""
        ...

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """Who works on these cards: by UUID, the bytes of each process, by its PID on the node.
        A card that does not answer is left out. Raises CardsUnknown."""
        ...

    async def context_bytes(self, uuid: str) -> int:
        """What a program's context costs on the card; 0: it cannot be told."""
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
        # A card that was away has been reset: its old fault is over.
        for uuid in present.keys() - self._present:
            self._faults.pop(uuid, None)
        self._facts.update(present)
        self._present = frozenset(present)

    def fault(self, uuid: str, xid: int) -> None:
        """The card has reported an XID."""
        if xid not in HARMLESS_XIDS:
            self._faults[uuid] = xid

    def facts(self) -> dict[str, CardFacts]:
        """Every known card with its problem, if it has one."""
        return {
            uuid: replace(card, problem=self._problem_of(uuid))
            for uuid, card in self._facts.items()
        }

    def _problem_of(self, uuid: str) -> str:
        # While NVML cannot be asked, nobody knows that a card is gone.
        if self.problem is None and uuid not in self._present:
            return "the card is gone"
        if uuid in self._faults:
            return f"the card reported XID {self._faults[uuid]}"
        return ""
