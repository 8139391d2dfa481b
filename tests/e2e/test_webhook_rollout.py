"""The webhook is replaced while pods are created, or by one that serves at its nodes' addresses."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.asking import asking
from e2e.components import (
    SYSTEM,
    component_pods,
    previous_values,
    set_values,
    wait_component,
)
from support.kube import Kube
from support.objects import share_pod
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


def wait_webhook(kube: Kube, on_nodes: bool) -> None:
    """Wait until all of the webhook's pods have their nodes' network, or none has, and share pods
    are accepted."""

    def changed() -> bool:
        pods = [one["status"] for one in component_pods(kube, "webhook")]
        return {one.get("podIP") == one.get("hostIP") for one in pods} == {on_nodes}

    wait_for("the webhook's network to change", changed, timeout=240)
    wait_component(kube, "webhook")


def test_a_webhook_with_the_host_network(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """As where API servers reach nodes and no pods."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    values = {"hostNetwork": True, "port": 1443, "metricsPort": 1464}
    try:
        with previous_values(mizar_cluster):
            set_values(mizar_cluster, webhook=values)
            wait_webhook(kube, on_nodes=True)
            kube.apply(share_pod(tenant, "a"))
            kube.wait_running(tenant, "a")
    finally:
        wait_webhook(kube, on_nodes=False)
