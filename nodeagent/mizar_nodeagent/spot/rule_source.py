"""Reads the rules for lending this node's cards from the operator's ConfigMap, and the node's
labels, by which the rules select nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

from mizar_core.errors import SpotRulesRefused
from mizar_core.spot_rules import CONFIG_MAP as NAME
from mizar_core.spot_rules import KEY, SpotRule, SpotRules
from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import CONFIG_MAP, NODE, Object, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.cards import Card
from mizar_nodeagent.read_again import spread
from mizar_nodeagent.spot.owners import rule_of

log = get_logger(__name__)

LABELS_EVERY_S: Final = 600.0
"""Seconds between two reads of the node's labels, on average (see `spread`)."""
SPREAD_S: Final = 10.0
"""Seconds within which an agent first reads the labels, at random, after the first rule appears:
all nodes see that rule at the same moment."""
RETRY_S: Final = 2.0
"""Seconds to the first retry after reading the labels failed."""
RETRY_MOST_S: Final = 60.0
"""Most seconds between two retries of reading the labels."""


class RuleSource:
    """Follows the rules and the node's labels. Labels are read only while there are rules. If the
    ConfigMap is damaged or empty, the previous rules stay in force: `helm upgrade --force` empties
    it, and the operator fills it again, even if nothing is lent: within 30 s while cards are lent,
    otherwise with its next resync. `changed` is called when rules or labels change; `random`
    returns numbers in [0, 1)."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        node: str,
        changed: Callable[[], None],
        random: Callable[[], float] = random.random,
    ) -> None:
        watched = Watched(CONFIG_MAP, namespace, field_selector=f"metadata.name={NAME}")
        self._informer: Informer[str] = Informer(client, watched, _text)
        self._informer.on_change(self._take)
        self._client = client
        self._ref = Ref(NODE, node)
        self._changed = changed
        self._random = random
        self._rules = SpotRules()
        self._unwritten = False
        self._lends = asyncio.Event()
        self._labels: Mapping[str, str] | None = None

    @property
    def known(self) -> bool:
        """Whether the rules have been written and read, and also the labels if there are rules.
        Rules that were read stay known while the ConfigMap is empty: otherwise a card whose owner
        has gone or has a problem would stay lent until it is filled."""
        labelled = self._labels is not None or not self._lends.is_set()
        return self._informer.synced.is_set() and labelled and not self._unwritten

    def of(self, card: Card, resource: str, pool: str | None = None) -> SpotRule | None:
        """The rule for a card that is held as this resource, by a shadow pod of this pool if it is
        given; None if the card is not lent."""
        return rule_of(card, resource, self._labels or {}, self._rules, pool)

    async def run(self) -> None:
        """Follow the rules and the labels until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.synced.wait()
            self._changed()
            await self._follow_labels()

    async def _follow_labels(self) -> None:
        retry = Backoff(RETRY_S, RETRY_MOST_S, self._random)
        while True:
            if not self._lends.is_set():
                await self._until_lent()
            if await self._read_labels():
                retry.reset()
                await asyncio.sleep(spread(LABELS_EVERY_S, self._random))
            else:
                await asyncio.sleep(retry.next())

    async def _until_lent(self) -> None:
        """Wait until there are rules. Labels read before are dropped, as they may be outdated by
        then."""
        self._labels = None
        await self._lends.wait()
        await asyncio.sleep(SPREAD_S * self._random())

    async def _read_labels(self) -> bool:
        try:
            node = await self._client.get(self._ref, cached=True)
        except KubeError as error:
            log.info("the node's labels cannot be read", error=error)
            return False
        labels = dict(node.get("metadata", {}).get("labels") or {})
        if labels != self._labels:
            self._labels = labels
            self._changed()
        return True

    def _take(self, old: str | None, new: str | None) -> None:
        if new == "":
            self._unwritten = old is None or self._unwritten
            log.info("the lending rules are not written yet: keeping the previous ones")
            self._changed()
            return
        self._unwritten = False
        try:
            self._rules = SpotRules.from_json(new) if new else SpotRules()
        except SpotRulesRefused as error:
            log.warning("invalid lending rules: keeping the previous ones", error=error)
            return
        if self._rules.rules:
            self._lends.set()
        else:
            self._lends.clear()
        self._changed()


def _text(obj: Object) -> str:
    return str((obj.get("data") or {}).get(KEY, ""))
