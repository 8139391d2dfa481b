"""A gang scheduler keeps devices for the pods that have a node until the whole gang can start. The
test takes its part: it says what such a scheduler says, and binds the pods itself."""

import json
import time
from typing import TYPE_CHECKING

import pytest

from e2e.watching import ready_shadows
from mizar_core.names import ANNOTATION_DRAIN
from mizar_core.planning.refused_nodes import REFUSAL_CONFIRMED_AFTER
from support.kube import Kube, condition
from support.objects import share_pod

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
MARGIN_S = 20.0
"""Seconds for which a plan may be late, and the drain that it would cause."""


LACKS = "0/2 nodes are available: 2 Insufficient {tenant}.mizar.share/gpu.2."
"""What such a scheduler says at its first look."""
REJECTED = (
    "0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin Coscheduling."
)
"""What it says when the rest of the gang found no node in time. It then tries again."""


def refuse(kube: Kube, tenant: str, name: str, message: str) -> None:
    """Say that the pod finds no node."""
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message.format(tenant=tenant),
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    of, patch = f"--namespace={tenant}", json.dumps({"status": {"conditions": [said]}})
    kube.run("patch", "pod", name, of, "--subresource=status", f"--patch={patch}")


def bind(kube: Kube, tenant: str, name: str, node: str) -> None:
    """Bind the pod to the node."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = f"/api/v1/namespaces/{tenant}/pods/{name}/binding"
    kube.run("create", "--raw", path, "--filename=-", input=json.dumps(body))


@pytest.mark.parametrize("message", [LACKS, REJECTED], ids=["lacks", "rejected"])
def test_devices_that_are_kept_for_a_gang_stay(kube: Kube, stage: "Stage", message: str) -> None:
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "member", schedulerName="gang"))
    refuse(kube, tenant, "member", message)
    (shadow,) = ready_shadows(kube, tenant)
    time.sleep(REFUSAL_CONFIRMED_AFTER.total_seconds() + MARGIN_S)
    held = kube.get("pod", shadow["metadata"]["name"], tenant)
    assert held is not None
    assert ANNOTATION_DRAIN not in held["metadata"]["annotations"]
    assert condition(kube.get("pod", "member", tenant) or {}, "PodScheduled")["status"] == "False"
    told = [reason for reason, _ in kube.events(tenant, "member")]
    assert ("NoNodeFits" in told) == (message == REJECTED)
    bind(kube, tenant, "member", held["spec"]["nodeName"])
    kube.wait_running(tenant, "member")
