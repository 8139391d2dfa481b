"""Asks for share pods all the time, to see whether the API server refuses any."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cluster import Cluster
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from support.objects import share_pod
from support.waiting import wait_for

INTERVAL_S = 0.05
MOST = 8
"""Requests that are under way at once. Without a limit, they pile up on a busy machine until the
API server answers nobody in time, and the operator loses its Lease."""
TOO_BUSY = ("deadline exceeded", "no answer from the API server: timed out")
"""Parts of the messages of a machine that is too busy to answer in time, which is no refusal."""


@dataclass
class Asked:
    """What became of share pods that were asked for. The API server tries their creation and keeps
    none."""

    accepted: int = 0
    refused: list[str] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)

    async def go_on(self, cluster: Cluster, tenant: str) -> None:
        """Ask for a pod every INTERVAL_S, until enough were asked for."""
        async with (
            await KubeClient.connect(cluster.kubeconfig) as client,
            asyncio.TaskGroup() as group,
        ):
            free = asyncio.Semaphore(MOST)
            while not self.enough.is_set():
                await free.acquire()
                asked = group.create_task(self._ask(client, tenant))
                asked.add_done_callback(lambda _: free.release())
                await asyncio.sleep(INTERVAL_S)

    async def _ask(self, client: KubeClient, tenant: str) -> None:
        try:
            await client.create(share_pod(tenant, "asked"), dry_run=True)
        except KubeError as error:
            if not any(one in str(error) for one in TOO_BUSY):
                self.refused.append(str(error))
        else:
            self.accepted += 1


@contextmanager
def asking(cluster: Cluster, tenant: str) -> Iterator[Asked]:
    """Share pods are asked for while the block runs, from when the first ones are accepted."""
    asked = Asked()
    thread = threading.Thread(target=lambda: asyncio.run(asked.go_on(cluster, tenant)))
    thread.start()
    try:
        wait_for("the first ones to be accepted", lambda: asked.accepted >= 20)
        asked.refused.clear()  # pods that were asked for before the webhook knew the tenant's quota
        yield asked
    finally:
        asked.enough.set()
        thread.join()
