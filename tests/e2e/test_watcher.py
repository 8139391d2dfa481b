"""The watcher that runs beside the tests notices a container that has a card of others."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.watcher import wait_noted
from e2e.watching import card_of, wait_held
from simgpu.machine import Machine
from support.kube import Kube
from support.objects import plain_pod, share_pod

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_container_that_was_given_a_card_in_use_by_hand(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, expected_faults: list[str]
) -> None:
    """The container gets it as anybody can who may mount any folder of the node."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (card,) = card_of(kube, tenant, "a")
    (shadow,) = kube.all("shadowpods", tenant)
    place = next(one for one in mizar_cluster.nodes if one.name == shadow["status"]["node"])
    with Machine(place.simgpu_dir) as machine:
        device = f"/dev/nvidia{machine.card(card).minor}"
    intruder = plain_pod(tenant, "intruder", nodeName=place.name)
    source = {"path": f"{place.simgpu_dir}{device}", "type": "CharDevice"}
    intruder["spec"]["volumes"] = [{"name": "card", "hostPath": source}]
    (main,) = intruder["spec"]["containers"]
    main["volumeMounts"] = [{"name": "card", "mountPath": device}]
    expected_faults.append(f"{tenant}/intruder/main has card {card}, which was given to {tenant}/")
    kube.apply(intruder)
    kube.wait_running(tenant, "intruder")
    wait_noted(expected_faults[0])
    kube.delete("pod", "intruder", tenant)
