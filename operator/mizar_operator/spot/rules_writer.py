"""Writes the ConfigMap from which node agents read the lending rules."""

from __future__ import annotations

import time
from collections.abc import Callable

from mizar_core.spot_rules import CONFIG_MAP, KEY, SpotRules
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.kinds import CONFIG_MAP as CONFIG_MAPS
from mizar_kube.kinds import Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)

BELIEVED_S = 30.0
"""Seconds until the ConfigMap is checked again. Only the operator writes it, but if it is deleted,
an upgrade of the chart creates an empty one, and no card is lent until the operator notices."""

NO_RULES = SpotRules().to_json()
"""The ConfigMap's content if nothing is lent."""


class RulesWriter:
    """Keeps the ConfigMap in `namespace` up to date. `clock` counts seconds."""

    def __init__(
        self, client: KubeClient, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._ref = Ref(CONFIG_MAPS, CONFIG_MAP, namespace)
        self._clock = clock
        self._written: tuple[str, float] | None = None

    async def write(self, rules: str) -> float | None:
        """Write the rules, unless they are there. Returns the seconds until the next check; None if
        nothing is lent. Raises KubeError."""
        await self._keep(rules)
        return None if rules == NO_RULES else BELIEVED_S

    async def _keep(self, rules: str) -> None:
        if self._written and self._written[0] == rules and self._clock() < self._written[1]:
            return
        try:
            await self._write(rules)
        except NotFound:
            if rules != NO_RULES:
                log.error(
                    "node agents lend nothing: the chart's ConfigMap is missing",
                    kind=CONFIG_MAPS.plural,
                    name=CONFIG_MAP,
                )
        self._written = rules, self._clock() + BELIEVED_S

    async def _write(self, rules: str) -> None:
        found = await self._client.get(self._ref)
        if (found.get("data") or {}).get(KEY) != rules:
            await self._client.patch_merge(self._ref, {"data": {KEY: rules}})
            log.info("lending rules written")
