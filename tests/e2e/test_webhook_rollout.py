"""The webhook is replaced while pods are created."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.asking import asking
from e2e.components import SYSTEM, component_pods
from support.kube import Kube
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ROLLOUTS = 2


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
        for _ in range(ROLLOUTS):
            before = asked.accepted
            replace_webhook(kube)
            wait_for("the new one to accept", lambda: asked.accepted >= before + 20)  # noqa: B023
    assert not asked.refused, asked.refused
