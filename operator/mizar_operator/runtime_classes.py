"""Which RuntimeClasses there are: asked for live, and believed for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.kinds import RUNTIME_CLASS, Ref

log = logging.getLogger(__name__)

BELIEVED_S = 30.0


class RuntimeClasses:
    """`clock` gives monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[str, tuple[float, bool]] = {}

    async def missing(self, names: Iterable[str]) -> frozenset[str]:
        """Those that certainly are not there. While the API server doesn't tell, none is: to say
        so is no reason to stop planning."""
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
            log.warning("cannot tell whether RuntimeClass %s exists: %s", name, error)
            return True
        else:
            exists = True
        self._found[name] = (self._clock() + BELIEVED_S, exists)
        return exists
