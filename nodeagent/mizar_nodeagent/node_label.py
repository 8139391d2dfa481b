"""Labels the node with its own name, so that shadow pods can exclude it in a way that Karpenter
understands: it adds no node for a pod whose affinity has a node's name or hostname in it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from mizar_core.names import LABEL_NODE, is_label_value
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.read_again import spread

log = get_logger(__name__)

EVERY_S = 600.0
"""Seconds between two looks at the label, on average (see `spread`): a Node that is deleted and
registered again has lost it."""
RETRY_S = 10.0
"""Seconds until the label is looked at again after an error, on average."""


class NodeLabel:
    """Keeps the label on one node. `random` returns numbers in [0, 1)."""

    def __init__(
        self, client: KubeClient, node: str, random: Callable[[], float] = random.random
    ) -> None:
        self._client = client
        self._random = random
        self._ref = Ref(NODE, node)

    async def run(self) -> None:
        """Write the label whenever it is missing, for ever. A name that is too long for a label is
        never written: the operator then excludes the node by its name."""
        if not is_label_value(self._ref.name):
            return
        while True:
            pause = EVERY_S
            try:
                await self.write()
            except KubeError as error:
                log.info("the node's label cannot be written for now", error=error)
                pause = RETRY_S
            await asyncio.sleep(spread(pause, self._random))

    async def write(self) -> None:
        """Write the label if it is missing. Raises KubeError."""
        found = await self._client.get(self._ref, cached=True)
        if (found["metadata"].get("labels") or {}).get(LABEL_NODE) == self._ref.name:
            return
        # The status subresource is the only part of a node that the agent may write.
        body = {"metadata": {"labels": {LABEL_NODE: self._ref.name}}}
        await self._client.patch_merge(self._ref, body, subresource="status")
