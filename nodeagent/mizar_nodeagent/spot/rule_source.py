"""The rules by which this node's cards are lent: the operator's ConfigMap and the node's labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from mizar_core.errors import SpotRulesRefused
from mizar_core.spot_rules import CONFIG_MAP as NAME
from mizar_core.spot_rules import KEY, SpotRule, SpotRules
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import CONFIG_MAP, NODE, Object, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.cards import Card
from mizar_nodeagent.spot.owners import rule_of

log = get_logger(__name__)

LABELS_EVERY_S = 60.0
RETRY_S = 2.0


class RuleSource:
    """`known` once rules and labels have been seen. Rules that are damaged change nothing.
    `changed` is called when they change."""

    def __init__(
        self, client: KubeClient, namespace: str, node: str, changed: Callable[[], None]
    ) -> None:
        watched = Watched(CONFIG_MAP, namespace, field_selector=f"metadata.name={NAME}")
        self._informer: Informer[str] = Informer(client, watched, _text)
        self._informer.on_change(self._take)
        self._client = client
        self._ref = Ref(NODE, node)
        self._changed = changed
        self._rules = SpotRules()
        self._labels: Mapping[str, str] | None = None

    @property
    def known(self) -> bool:
        """Whether rules and labels have been seen."""
        return self._informer.synced.is_set() and self._labels is not None

    def of(self, card: Card, resource: str) -> SpotRule | None:
        """The rule of a card that is held as this resource; None if it is not lent."""
        return rule_of(card, resource, self._labels or {}, self._rules)

    async def run(self) -> None:
        """Follow both, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._follow_labels())
            await self._informer.synced.wait()
            self._changed()

    async def _follow_labels(self) -> None:
        while True:
            try:
                node = await self._client.get(self._ref)
            except KubeError as error:
                log.info("the node's labels are not known now", error=error)
                await asyncio.sleep(RETRY_S)
                continue
            labels = dict(node.get("metadata", {}).get("labels") or {})
            if labels != self._labels:
                self._labels = labels
                self._changed()
            await asyncio.sleep(LABELS_EVERY_S)

    def _take(self, old: str | None, new: str | None) -> None:
        try:
            self._rules = SpotRules.from_json(new) if new else SpotRules()
        except SpotRulesRefused as error:
            log.warning("the rules for lending cards stay as they were", error=error)
            return
        self._changed()


def _text(obj: Object) -> str:
    return str((obj.get("data") or {}).get(KEY, ""))
