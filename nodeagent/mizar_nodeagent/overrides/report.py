"""Reports in a condition of the agent's own pod whether the node has settings of its own, and why
its overrides cannot be used if they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_SETTINGS
from mizar_kube.client import KubeClient
from mizar_nodeagent.overrides.source import OverrideSource
from mizar_nodeagent.own_condition import OwnCondition

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
        self._source = source
        written = OwnCondition(client, self._condition, MANAGER, namespace, pod, sleep)
        self.run, self.write = written.run, written.write

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
