"""The webhook is replaced while pods are created."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.components import SYSTEM, component_pods
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
INTERVAL_S = 0.05
ROLLOUTS = 2


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
            while not self.enough.is_set():
                group.create_task(self._ask(client, tenant))
                await asyncio.sleep(INTERVAL_S)

    async def _ask(self, client: KubeClient, tenant: str) -> None:
        try:
            await client.create(share_pod(tenant, "asked"), dry_run=True)
        except KubeError as error:
            if "deadline exceeded" not in str(error):  # a machine too busy to answer in time
                self.refused.append(str(error))
        else:
            self.accepted += 1


@contextmanager
def asking(cluster: Cluster, tenant: str) -> Iterator[Asked]:
    """Share pods are asked for while the block runs."""
    asked = Asked()
    thread = threading.Thread(target=lambda: asyncio.run(asked.go_on(cluster, tenant)))
    thread.start()
    try:
        yield asked
    finally:
        asked.enough.set()
        thread.join()


def replace_webhook(kube: Kube) -> None:
    """Replace the webhook; on return the old one's pods are gone."""
    old = {one["metadata"]["uid"] for one in component_pods(kube, "webhook")}
    kube.run("rollout", "restart", "deployment/mizar-webhook", f"--namespace={SYSTEM}")
    wait_for(
        "the webhook's old pods to be gone",
        lambda: not old & {one["metadata"]["uid"] for one in component_pods(kube, "webhook")},
        timeout=240,
    )


def test_no_share_pod_is_refused_while_the_webhook_is_replaced(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """The webhook is replaced as by an upgrade."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    with asking(mizar_cluster, tenant) as asked:
        wait_for("the first ones to be accepted", lambda: asked.accepted >= 20)
        asked.refused.clear()  # pods that were asked for before the webhook knew the tenant's quota
        for _ in range(ROLLOUTS):
            before = asked.accepted
            replace_webhook(kube)
            wait_for("the new one to accept", lambda: asked.accepted >= before + 20)  # noqa: B023
    assert not asked.refused, asked.refused
