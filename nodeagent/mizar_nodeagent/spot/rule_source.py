"""The rules by which this node's cards are lent: the operator's ConfigMap and the node's labels."""

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
"""Seconds on average (see `spread`)."""
SPREAD_S: Final = 10.0
"""All nodes hear of the first rule at the same moment: each asks within so many seconds."""
RETRY_S: Final = 2.0
RETRY_MOST_S: Final = 60.0


class RuleSource:
    """`known` once rules have been seen, and labels where there are rules: without any, nobody asks
    for labels. Rules that are damaged change nothing. `changed` is called when they change;
    `random` gives numbers in [0, 1)."""

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
        self._lends = asyncio.Event()
        self._labels: Mapping[str, str] | None = None

    @property
    def known(self) -> bool:
        """Whether rules have been seen, and the labels that they may ask for."""
        labelled = self._labels is not None or not self._lends.is_set()
        return self._informer.synced.is_set() and labelled

    def of(self, card: Card, resource: str) -> SpotRule | None:
        """The rule of a card that is held as this resource; None if it is not lent."""
        return rule_of(card, resource, self._labels or {}, self._rules)

    async def run(self) -> None:
        """Follow both, for ever."""
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
        """Labels of days ago say nothing of the node by then."""
        self._labels = None
        await self._lends.wait()
        await asyncio.sleep(SPREAD_S * self._random())

    async def _read_labels(self) -> bool:
        try:
            node = await self._client.get(self._ref)
        except KubeError as error:
            log.info("the node's labels are not known now", error=error)
            return False
        labels = dict(node.get("metadata", {}).get("labels") or {})
        if labels != self._labels:
            self._labels = labels
            self._changed()
        return True

    def _take(self, old: str | None, new: str | None) -> None:
        try:
            self._rules = SpotRules.from_json(new) if new else SpotRules()
        except SpotRulesRefused as error:
            log.warning("the rules for lending cards stay as they were", error=error)
            return
        if self._rules.rules:
            self._lends.set()
        else:
            self._lends.clear()
        self._changed()


def _text(obj: Object) -> str:
    return str((obj.get("data") or {}).get(KEY, ""))
