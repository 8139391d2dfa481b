"""Polls NVML and usage files for what the owners of lent and lendable cards do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.slow_call import SlowCall
from mizar_nodeagent.spot.detectors.card_processes import CardLoads, ProcessLoads
from mizar_nodeagent.spot.lender import Lender

log = get_logger(__name__)

LENT_S: Final = 0.1
"""Seconds between two NVML queries for a card that is borrowed from an owner without the shim."""
EVERY_S: Final = 0.5
"""Seconds between two NVML queries for all other watched cards, and between two reads of the usage
files. Also the timeout of an NVML query, and the most seconds until a newly borrowed card is among
those that are queried every LENT_S: its borrower takes longer to start."""


class OwnerPolling:
    """Queries NVML and reads usage files on behalf of the lender. For owners that have the shim,
    the time slicer detects work much sooner, and calls the lender directly."""

    def __init__(self, lender: Lender, cards: CardSource) -> None:
        self._lender = lender
        self._cards = cards
        self._asked: SlowCall[Mapping[str, ProcessLoads]] = SlowCall()

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            await self._watch()
        finally:
            self._asked.cancel()

    async def _watch(self) -> None:
        while True:
            await self._look_at_all()
            if self._lender.unseen_by_slicer():
                await self._follow_unseen()
            else:
                await asyncio.sleep(EVERY_S)

    async def _look_at_all(self) -> None:
        """Read the usage files, and query NVML for all watched cards."""
        if watched := self._lender.watched():
            self._lender.look_at_usage()
            await self._look(watched)

    async def _follow_unseen(self) -> None:
        """For EVERY_S, query NVML for the cards whose owners only NVML shows."""
        for _ in range(round(EVERY_S / LENT_S) - 1):
            await asyncio.sleep(LENT_S)
            if unseen := self._lender.unseen_by_slicer():
                await self._look(unseen)
        await asyncio.sleep(LENT_S)

    async def _look(self, uuids: Collection[str]) -> None:
        self._lender.look_at_processes(await self._loads(uuids))

    async def _loads(self, uuids: Collection[str]) -> CardLoads:
        """The loads of the cards' processes. None for each card if NVML does not answer in time:
        the lender must still be called, so that it notices cards without answers."""
        try:
            answered = await self._asked.answer(lambda: self._cards.loads(uuids), within=EVERY_S)
        except (CardsUnknown, TimeoutError) as error:
            log.debug("the cards' processes are not known", error=repr(error))
            answered = {}
        return {uuid: answered.get(uuid) for uuid in {*uuids, *answered}}
