"""Reports in a condition of the agent's own pod whether the node has settings of its own, and why
its overrides cannot be used if they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_SETTINGS
from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.logs import get_logger
from mizar_nodeagent.condition_body import condition_body
from mizar_nodeagent.overrides.source import OverrideSource

log = get_logger(__name__)

EVERY_S: Final = 2.0
"""Seconds between two checks whether the condition has changed."""
RETRY_MOST_S: Final = 60.0
"""The most seconds until an API server that does not answer is tried again."""
MESSAGE_MAX: Final = 1024
"""Characters to which the condition's message is cut."""
MANAGER: Final = f"{FIELD_MANAGER_NODEAGENT}-settings"
"""A separate field manager, since another condition is written to the same pod."""


class OverrideReporter:
    """Writes the condition. `namespace`, `pod`: the names of the agent's own pod. Tests set
    `sleep`."""

    def __init__(
        self,
        client: KubeClient,
        source: OverrideSource,
        namespace: str,
        pod: str,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._source = source
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
                return  # the agent does not run as a pod
            except KubeError as error:
                log.info("the condition about the node's overrides cannot be written", error=error)
                pause = error.retry_after or backoff.next()
            await self._sleep(pause)

    async def write(self) -> None:
        """Write the condition, unless this was its last content. Raises KubeError."""
        condition = self._condition()
        if condition == self._written:
            return
        body = condition_body(self._namespace, self._pod, condition)
        await self._client.apply(body, field_manager=MANAGER, subresource="status")
        self._written = condition

    def _condition(self) -> dict[str, str]:
        source = self._source
        names = ", ".join(sorted(source.used))
        now = (
            f"this node has its own {names}"
            if names
            else "the node has the same settings as all others"
        )
        if source.problem:
            return _body("False", "Refused", f"{source.problem}; meanwhile {now}")
        return _body("True", "Overridden" if names else "Default", now)


def _body(status: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": POD_CONDITION_SETTINGS,
        "status": status,
        "reason": reason,
        "message": message[:MESSAGE_MAX],
    }
