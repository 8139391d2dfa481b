"""The RuntimeClasses that exist: read live, and cached for BELIEVED_S seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.kinds import RUNTIME_CLASS, Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)

BELIEVED_S = 30.0
"""Seconds for which it is cached whether a RuntimeClass exists."""


class RuntimeClasses:
    """A cache of which RuntimeClasses exist. `clock` gives monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[str, tuple[float, bool]] = {}

    async def missing(self, names: Iterable[str]) -> frozenset[str]:
        """The RuntimeClasses that certainly do not exist. While the API server does not answer,
        none counts as missing: that is no reason to stop planning."""
        return frozenset([name for name in sorted(set(names)) if not await self._exists(name)])

    async def _exists(self, name: str) -> bool:
        until, exists = self._found.get(name, (0.0, True))
        if until > self._clock():
            return exists
        try:
            await self._client.get(Ref(RUNTIME_CLASS, name))
        except NotFound:
            exists = False
        except KubeError as error:
            log.warning("the RuntimeClass could not be read", name=name, error=error)
            return True
        else:
            exists = True
        self._found[name] = (self._clock() + BELIEVED_S, exists)
        return exists
