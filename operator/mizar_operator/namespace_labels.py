"""The labels of namespaces: read live when a default quota depends on them, and cached for
BELIEVED_S seconds. The operator does not watch namespaces, of which there may be very many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NAMESPACE, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator.live_objects import find

log = get_logger(__name__)

BELIEVED_S = 30.0
"""Seconds for which a namespace's labels are cached."""
READS_AT_ONCE = 16
"""The most namespaces that are read at the same time."""

Labels = Mapping[str, str]
"""The labels of a namespace."""


class NamespaceLabels:
    """A cache of the labels of namespaces. `clock` gives monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[str, tuple[float, Labels | None]] = {}
        self._limit = asyncio.Semaphore(READS_AT_ONCE)

    async def of(self, names: Iterable[str]) -> dict[str, Labels]:
        """The labels of these namespaces, without those that are gone, are being deleted, or cannot
        be read now: they get no default quota, which is no reason to stop planning."""
        now = self._clock()
        self._found = {name: one for name, one in self._found.items() if one[0] > now}
        wanted = sorted(set(names))
        await asyncio.gather(*(self._read(name) for name in wanted if name not in self._found))
        known = ((name, self._found.get(name, (0.0, None))[1]) for name in wanted)
        return {name: labels for name, labels in known if labels is not None}

    async def _read(self, name: str) -> None:
        try:
            async with self._limit:
                obj = await find(self._client, Ref(NAMESPACE, name))
        except KubeError as error:
            log.warning("the namespace could not be read", namespace=name, error=error)
            return
        self._found[name] = self._clock() + BELIEVED_S, _labels(obj)


def _labels(namespace: Object | None) -> Labels | None:
    """None for a namespace that is gone or being deleted."""
    if namespace is None or "deletionTimestamp" in namespace["metadata"]:
        return None
    return namespace["metadata"].get("labels") or {}
