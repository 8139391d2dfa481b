"""Keeps a condition of the agent's own pod as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.logs import get_logger
from mizar_nodeagent.condition_body import condition_body

log = get_logger(__name__)

EVERY_S: Final = 2.0
"""Seconds between two checks whether the condition has changed."""
RETRY_MOST_S: Final = 60.0
"""The most seconds until an API server that does not answer is tried again."""


class OwnCondition:
    """Writes one condition. `wanted`: returns its type, status, reason and message. `manager`: its
    field manager, another one for each condition, since an apply removes the manager's other ones.
    `namespace`, `pod`: the names of the agent's own pod. Tests set `sleep`."""

    def __init__(
        self,
        client: KubeClient,
        wanted: Callable[[], dict[str, str]],
        manager: str,
        namespace: str,
        pod: str,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._manager = manager
        self._namespace = namespace
        self._pod = pod
        self._sleep = sleep
        self._written: dict[str, str] | None = None

    async def run(self) -> None:
        """Write the condition whenever it differs, for ever. Returns if the agent's pod does not
        exist."""
        backoff = Backoff(EVERY_S, RETRY_MOST_S)
        while True:
            pause = EVERY_S
            try:
                await self.write()
                backoff.reset()
            except NotFound:
                log.info(
                    "the agent's own pod does not exist: its condition is not written",
                    pod=self._pod,
                    name=self._wanted()["type"],
                )
                return
            except KubeError as error:
                log.warning(
                    "a condition of the agent's own pod cannot be written",
                    name=self._wanted()["type"],
                    error=error,
                )
                pause = error.retry_after or backoff.next()
            await self._sleep(pause)

    async def write(self) -> None:
        """Write the condition, unless this was its last content. Raises KubeError."""
        wanted = self._wanted()
        if wanted == self._written:
            return
        body = condition_body(self._namespace, self._pod, wanted)
        await self._client.apply(body, field_manager=self._manager, subresource="status")
        self._written = wanted
