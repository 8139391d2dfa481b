"""With `nodeagent.hamiAnnotations`, dashboards made for HAMi find nodes and share pods as HAMi
describes them."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.components import set_agent_values
from e2e.watching import card_of, wait_held
from mizar_core.names import HAMI_HANDSHAKE, HAMI_POD_DEVICES, HAMI_POD_NODE, HAMI_REGISTER
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PROFILE = {"devices": 2, "cards": 1}
HALF = {"devices": 2, "min": 0, "max": 1}


@pytest.fixture
def annotated(kube: Kube, mizar_cluster: Cluster) -> Iterator[None]:
    """The agents write the annotations while the test runs, and have removed the nodes' at the end,
    which is checked."""
    set_agent_values(kube, mizar_cluster, hamiAnnotations="JSON")
    try:
        yield
    finally:
        set_agent_values(kube, mizar_cluster, hamiAnnotations="None")
    for node in mizar_cluster.nodes:
        assert not notes(kube, "node", node.name).keys() & {HAMI_REGISTER, HAMI_HANDSHAKE}


def notes(kube: Kube, kind: str, name: str, namespace: str | None = None) -> dict[str, str]:
    """The object's annotations."""
    found = kube.get(kind, name, namespace)
    assert found
    return dict(found["metadata"].get("annotations") or {})


def test_a_share_pod_and_its_node_look_like_hamis(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, annotated: None
) -> None:
    pool = stage.pool(profiles=[PROFILE], isolation={"compute": "Hard"})
    tenant = stage.tenant(HALF, pool=pool)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (card,) = card_of(kube, tenant, "a")
    pod = wait_for("the pod's annotations", lambda: _of_hami(notes(kube, "pod", "a", tenant)))
    node = str((kube.get("pod", "a", tenant) or {})["spec"]["nodeName"])
    assert pod == {HAMI_POD_NODE: node, HAMI_POD_DEVICES: f"{card},NVIDIA,8192,50:;"}

    def parts() -> dict[str, int]:
        found = json.loads(notes(kube, "node", node).get(HAMI_REGISTER, "[]"))
        return {one["id"]: one["count"] for one in found}

    wait_for("the node's annotation to show the card's halves", lambda: parts().get(card) == 2)
    assert sorted(parts().values()) == [1, 2], "the other card is whole"
    assert notes(kube, "node", node)[HAMI_HANDSHAKE].startswith("Reported 2")


def _of_hami(found: dict[str, str]) -> dict[str, str]:
    return {key: found[key] for key in (HAMI_POD_NODE, HAMI_POD_DEVICES) if key in found}
