"""A stand-in for Kopf: it watches Mizar's own kinds and passes their events to the stores.

It does so as Kopf 1.45 does: list everything (events of type None), watch from there, go on from
the last version when the connection ends, list again after 410 and report only what is there.
Events of one object are handled in order, those of different UIDs in any order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from mizar_kube.errors import Gone, KubeError
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, SHADOW_POD, Kind, Object
from mizar_operator.caches import Caches
from mizar_operator.kopf_store import KopfStore
from simulation.client import SimulatedClient

RECONNECT_S = 0.1

Tell = Callable[[str | None, Object], None]


class KopfWatch:
    """Kopf's watches in one process. `slow`: how many seconds a handler may be called late, at
    most."""

    def __init__(
        self, client: SimulatedClient, caches: Caches, random: Random, slow: float
    ) -> None:
        self._client = client
        self._random = random
        self._slow = slow
        self._stores: list[tuple[Kind, KopfStore[Any]]] = [
            (GPU_POOL, caches.pools),
            (GPU_QUOTA, caches.quotas),
            (SHADOW_POD, caches.shadows),
        ]

    async def run(self) -> None:
        """Watch all kinds, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for kind, store in self._stores:
                tasks.create_task(self._watch(kind, Handling(store.tell, self._delay)))

    async def _watch(self, kind: Kind, handling: Handling) -> None:
        while True:
            try:
                await self._list_and_watch(kind, handling)
            except KubeError:
                await asyncio.sleep(RECONNECT_S)

    async def _list_and_watch(self, kind: Kind, handling: Handling) -> None:
        version = ""
        async for page in self._client.list_pages(kind):
            version = page.resource_version
            for obj in page.items:
                handling.put(None, obj)
        while True:
            try:
                async for event in self._client.watch(kind, resource_version=version):
                    version = str(event.object["metadata"]["resourceVersion"])
                    if event.type != "BOOKMARK":
                        handling.put(event.type, event.object)
            except Gone:
                raise
            except KubeError:
                await asyncio.sleep(RECONNECT_S)

    def _delay(self) -> float:
        return self._slow * self._random.random()


class Handling:
    """Handlers of one kind: one object's events wait for each other, others' do not."""

    def __init__(self, tell: Tell, delay: Callable[[], float]) -> None:
        self._tell = tell
        self._delay = delay
        self._queues: dict[str, deque[tuple[str | None, Object]]] = {}

    def put(self, type: str | None, obj: Object) -> None:
        """An event has come in."""
        uid = obj["metadata"]["uid"]
        if uid in self._queues:
            self._queues[uid].append((type, obj))
        else:
            self._queues[uid] = deque([(type, obj)])
            self._later(uid)

    def _later(self, uid: str) -> None:
        asyncio.get_running_loop().call_later(self._delay(), self._handle, uid)

    def _handle(self, uid: str) -> None:
        queue = self._queues[uid]
        self._tell(*queue.popleft())
        if queue:
            self._later(uid)
        else:
            del self._queues[uid]
