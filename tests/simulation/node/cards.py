"""The node's cards as NVML reports them: cards drop out and come back with other minor numbers, and
NVML fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random

from mizar_nodeagent.cards import Card, ProcessLoad
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.mig import Instance

MEMORY = 16 << 30
COUNT = 4


def whole(number: int) -> str:
    """A card's UUID."""
    return f"GPU-0000000{number}"


MIG = ("MIG-0000000a", "MIG-0000000b")
"""Two MIG devices of card 3, on a node that has some."""


class Cards:
    """Has CardSource's interface. `present`: those that NVML lists, with their minor numbers."""

    def __init__(self, random: Random, mig: bool) -> None:
        self.random = random
        self.all = {
            whole(one): Card(whole(one), MEMORY, "Card", driver="580") for one in range(COUNT)
        }
        if mig:
            divided = whole(COUNT - 1)
            del self.all[divided]
            for number, uuid in enumerate(MIG):
                place = Instance(divided, number + 1, 0)
                self.all[uuid] = Card(uuid, MEMORY >> 1, "Card MIG", driver="580", instance=place)
        self.minor = {uuid: number for number, uuid in enumerate(self.all)}
        self.away = False
        self.working: dict[str, dict[int, int]] = {}
        self.tell: Callable[[str, int], None] = lambda uuid, xid: None

    def drop(self, uuid: str) -> None:
        """The card falls off the bus; its number is free."""
        self.minor.pop(uuid, None)

    def come_back(self) -> None:
        """All cards are there; those that were away get the lowest numbers that are free."""
        for uuid in self.all:
            if uuid not in self.minor:
                taken = set(self.minor.values())
                self.minor[uuid] = next(one for one in range(99) if one not in taken)

    def renumber(self) -> None:
        """The driver is loaded anew and numbers the cards in another order."""
        numbers = sorted(self.minor.values())
        self.random.shuffle(numbers)
        self.minor = dict(zip(self.minor, numbers, strict=True))

    async def read(self, expected: Collection[str] = ()) -> dict[str, Card]:
        """As CardSource.read."""
        await self._answer()
        return {uuid: card for uuid, card in self.all.items() if uuid in self.minor}

    async def minors(self, uuids: Collection[str]) -> dict[str, int]:
        """As CardSource.minors."""
        await self._answer()
        return {uuid: self.minor[uuid] for uuid in uuids if uuid in self.minor}

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """As CardSource.faults."""
        self.tell = tell
        await asyncio.Event().wait()

    async def workers(self, uuids: Collection[str]) -> dict[str, dict[int, int]]:
        """As CardSource.workers."""
        return {}

    async def loads(self, uuids: Collection[str]) -> dict[str, dict[int, ProcessLoad]]:
        """As CardSource.loads."""
        await self._answer()
        return {
            uuid: {pid: ProcessLoad(load) for pid, load in self.working.get(uuid, {}).items()}
            for uuid in uuids
            if uuid in self.minor
        }

    async def utilization(self, uuid: str) -> dict[int, float] | None:
        """As CardSource.utilization."""
        return None

    async def free_bytes(self, uuid: str) -> int:
        """As CardSource.free_bytes."""
        await self._answer()
        return MEMORY >> 1

    async def context_bytes(self, uuid: str) -> int:
        """As CardSource.context_bytes."""
        return 300 << 20

    async def _answer(self) -> None:
        await asyncio.sleep(self.random.choice((0.001, 0.02, 0.5)))
        if self.away:
            raise CardsUnknown("NVML does not answer (simulated)")
