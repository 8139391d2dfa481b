"""Looks at what lent and lendable cards' owners do, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.slow_call import SlowCall
from mizar_nodeagent.spot.detectors.card_processes import ProcessLoads
from mizar_nodeagent.spot.lender import Lender

log = get_logger(__name__)

LENT_S: Final = 0.1
"""Between two questions to NVML about a card that is borrowed from an owner without the shim."""
EVERY_S: Final = 0.5
"""Between two about other cards, and between two looks at usage files."""


class OwnerPolling:
    """Asks NVML and reads usage files on behalf of the lender. The time slicer tells it of owners
    with the shim that wake up, much sooner."""

    def __init__(self, lender: Lender, cards: CardSource) -> None:
        self._lender = lender
        self._cards = cards
        self._asked: SlowCall[Mapping[str, ProcessLoads]] = SlowCall()

    async def run(self) -> None:
        """Watch for ever."""
        try:
            await self._watch()
        finally:
            self._asked.cancel()

    async def _watch(self) -> None:
        rounds = 0
        while True:
            quick = self._lender.unseen_by_slicer()
            if quick or rounds % round(EVERY_S / LENT_S) == 0:
                await self._look(quick if rounds % round(EVERY_S / LENT_S) else None)
            rounds += 1
            await asyncio.sleep(LENT_S)

    async def _look(self, only: Collection[str] | None) -> None:
        """Look at these cards; at all that are watched if None."""
        watched = self._lender.watched() if only is None else only
        if not watched:
            return
        if only is None:
            self._lender.look_at_usage()
        self._lender.look_at_processes(await self._loads(watched))

    async def _loads(self, uuids: Collection[str]) -> Mapping[str, ProcessLoads]:
        """What NVML tells; nothing while it hangs, so that the lender finds out that cards tell
        nothing."""
        try:
            return await self._asked.answer(lambda: self._cards.loads(uuids), within=EVERY_S)
        except (CardsUnknown, TimeoutError) as error:
            log.debug("the cards' processes are not known", error=repr(error))
            return {}
