"""Writes node annotations in the format of HAMi's device plugin, so that dashboards made for HAMi
show this node: its cards, the number of parts of each, and when the annotations were last written.

JSON is the format of the current HAMi, Text that of older versions. No part of Mizar reads these
annotations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor
from typing import Any, Final, Literal

from mizar_core.names import HAMI_HANDSHAKE, HAMI_REGISTER
from mizar_core.quantities import parse_scaling
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import Card
from mizar_nodeagent.planning.carving import Carving

log = get_logger(__name__)

Form = Literal["JSON", "Text"]
"""Format of the annotation HAMI_REGISTER."""

LOOK_EVERY_S: Final = 5.0
"""Seconds between two checks whether the annotations must be written."""
HANDSHAKE_EVERY_S: Final = 30.0
"""Seconds after which the annotations are written again although the cards have not changed."""
WITHDRAW_WITHIN_S: Final = 2.0
"""Most seconds for removing the annotations when the agent ends."""


@dataclass(frozen=True)
class Registered:
    """A card as HAMi registers it, with HAMi's names. `count`: number of its parts. `devmem`: its
    memory in MiB. `devcore`: its compute in percent, 100 for a whole card. Both are multiplied by
    the pool's scaling. `numa`: its lowest NUMA node, 0 if unknown. `health`: it has no problem."""

    id: str
    count: int
    devmem: int
    devcore: int
    type: str
    numa: int
    health: bool

    def to_json(self) -> dict[str, Any]:
        """The card as a JSON object. Fields that are 0 or empty are left out, as HAMi does; only
        `health` is always there."""
        return {
            **{key: value for key, value in vars(self).items() if value or key == "health"},
            "mode": "hami-core",
        }

    def to_text(self) -> str:
        """The card in the Text format: its fields separated by commas, with a colon at the end."""
        health = str(self.health).lower()
        fields = (self.id, self.count, self.devmem, self.devcore, self.type, self.numa, health)
        return ",".join(map(str, fields)) + ":"


def registered(state: AgentState) -> list[Registered]:
    """The node's cards, sorted by UUID, except those divided into MIG devices. A carved card has
    its number of devices and its pool's scaling; any other card counts as one part."""
    carvings = {card.uuid: one for one in state.carvings.values() for card in one.cards}
    return [
        _registered(card, carvings.get(uuid))
        for uuid, card in sorted(state.snapshot.cards.items())
        if not card.divided
    ]


def _registered(card: Card, carving: Carving | None) -> Registered:
    carve = carving.carve if carving else None
    memory = parse_scaling(carve.memory_scaling) if carve else 1
    cores = parse_scaling(carve.core_scaling) if carve else 1
    return Registered(
        id=card.uuid,
        count=carve.devices // carve.cards if carve else 1,
        devmem=floor((card.memory_bytes >> 20) * memory),
        devcore=floor(100 * cores),
        type=card.model if card.model.startswith("NVIDIA") else f"NVIDIA-{card.model}",
        numa=min(card.numa, default=0),
        health=not card.problem,
    )


def register_value(cards: Iterable[Registered], form: Form) -> str:
    """The value of the annotation HAMI_REGISTER, which describes these cards in this format."""
    if form == "JSON":
        return json.dumps([one.to_json() for one in cards], separators=(",", ":"))
    return "".join(one.to_text() for one in cards)


def handshake_value(now: datetime) -> str:
    """The value of the annotation HAMI_HANDSHAKE, which says that the cards were reported at the
    time `now`."""
    return f"Reported {now.astimezone(UTC):%Y-%m-%d %H:%M:%S} +0000 UTC"


class HamiAnnotations:
    """Writes both annotations when the cards change, and every HANDSHAKE_EVERY_S. `clock` returns
    monotonic seconds, `now` the time of day."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        state: AgentState,
        form: Form,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._ref = Ref(NODE, node)
        self._state = state
        self._form = form
        self._clock = clock
        self._now = now
        self._written: str | None = None
        self._written_at = float("-inf")

    async def run(self) -> None:
        """Keep the annotations current, for ever. Errors are logged, and the write is tried
        again."""
        while True:
            try:
                await self.write()
            except KubeError as error:
                log.warning("the node's annotations for HAMi cannot be written", error=error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def write(self) -> None:
        """Write the annotations, unless the cards are the same as at a write less than
        HANDSHAKE_EVERY_S ago. Raises KubeError."""
        value = register_value(registered(self._state), self._form)
        if value == self._written and self._clock() - self._written_at < HANDSHAKE_EVERY_S:
            return
        await self._patch({HAMI_REGISTER: value, HAMI_HANDSHAKE: handshake_value(self._now())})
        self._written, self._written_at = value, self._clock()

    async def withdraw(self) -> None:
        """Remove the annotations when the agent ends, since nothing keeps them current any more. An
        error is only logged."""
        try:
            async with asyncio.timeout(WITHDRAW_WITHIN_S):
                await self._patch({HAMI_REGISTER: None, HAMI_HANDSHAKE: None})
        except (KubeError, TimeoutError) as error:
            log.warning("the node's annotations for HAMi cannot be removed", error=error)

    async def _patch(self, annotations: dict[str, str | None]) -> None:
        # Patch the status subresource, the only part of a node that the agent may write.
        body = {"metadata": {"annotations": annotations}}
        await self._client.patch_merge(self._ref, body, subresource="status")
