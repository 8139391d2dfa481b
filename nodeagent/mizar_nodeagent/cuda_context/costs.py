"""Keeps the memory that a CUDA context takes on a card, measured once for each model and driver.

A process in a container cannot measure it: memory that others on the card take or free at that
moment would be measured too. So the agent measures it, and writes it into every container's limits
(docs/adr/0020-a-contexts-cost-is-learned-once.md).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import Card
from mizar_nodeagent.files import write_atomically

log = get_logger(__name__)

CONTEXTS: Final = "contexts.json"
"""Name of the file that keeps the costs, in the agent's state folder."""
VERSION: Final = 1
"""Version of that file's format."""
EVERY_S: Final = 2.0
"""Seconds between two looks for held cards whose model is not known."""
RETRY_S: Final = 300.0
"""Seconds until a failed measurement is repeated: the card may be full, say, or the agent has no
libcuda."""

Measure = Callable[[str], Awaitable[int]]
"""Returns the bytes of a context on the card with this UUID; 0 if they cannot be measured."""


class ContextCosts:
    """The bytes that a context takes on the cards that shadow pods hold. `path`: the file that
    keeps them. `measure` measures a card, `clock` returns monotonic seconds. `learning` is held
    during a measurement, which takes memory of a card."""

    def __init__(
        self,
        path: Path,
        state: AgentState,
        measure: Measure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._state = state
        self._measure = measure
        self._clock = clock
        self._known = _load(path)
        self._failed_at: dict[str, float] = {}
        self.learning = asyncio.Lock()

    def of(self, uuid: str) -> int:
        """Bytes of a context on the card with this UUID; 0 if unknown, in which case its containers
        measure it. For a card that this agent has not read yet, whose driver is unknown, the most
        bytes with any driver."""
        card = self._state.snapshot.cards.get(uuid)
        if card is None:
            return 0
        if card.driver:
            return self._known.get(_key(card), 0)
        ending = f"/{card.model}"
        return max((size for key, size in self._known.items() if key.endswith(ending)), default=0)

    async def run(self) -> None:
        """Measure the unknown models of held cards, for ever."""
        while True:
            held = {card.uuid for one in self._state.carvings.values() for card in one.cards}
            await self.learn(sorted(held))
            await asyncio.sleep(EVERY_S)

    async def learn(self, uuids: Iterable[str]) -> None:
        """Measure the models of the cards with these UUIDs, except those that are known, whose
        driver is not known yet, or whose measurement failed less than RETRY_S ago."""
        for uuid in uuids:
            # Checked before the lock too: a caller whose cards are all known must not wait for the
            # measurement of another.
            if self._to_be_learned(uuid):
                async with self.learning:
                    if card := self._to_be_learned(uuid):
                        await self._learn(card)

    def _to_be_learned(self, uuid: str) -> Card | None:
        card = self._state.snapshot.cards.get(uuid)
        may_try = self._clock() >= self._failed_at.get(uuid, -math.inf) + RETRY_S
        return card if card and card.driver and may_try and not self.of(uuid) else None

    async def _learn(self, card: Card) -> None:
        size = await self._measure(card.uuid)
        if not 0 < size < card.memory_bytes:
            self._failed_at[card.uuid] = self._clock()
            log.warning("the cost of a context cannot be measured", card=card.uuid)
            return
        log.debug("a context was measured", memory_mib={card.uuid: size >> 20})
        self._known[_key(card)] = size
        try:
            await asyncio.to_thread(write_atomically, self._path, _to_bytes(self._known))
        except OSError as error:
            log.error("the costs of contexts cannot be saved", error=error)


def _key(card: Card) -> str:
    return f"{card.driver}/{card.model}"


def _to_bytes(known: dict[str, int]) -> bytes:
    return json.dumps({"version": VERSION, "contexts": known}, indent=1, sort_keys=True).encode()


def _load(path: Path) -> dict[str, int]:
    """Bytes by driver and model; empty if the file is missing or damaged, since they can be
    measured again."""
    try:
        body = json.loads(path.read_bytes())
        if body["version"] != VERSION:
            raise ValueError(f"version {body['version']} instead of {VERSION}")
        return {str(key): int(size) for key, size in body["contexts"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.error(
            "the saved costs of contexts cannot be read",
            path=path,
            error=error,
        )
        return {}
