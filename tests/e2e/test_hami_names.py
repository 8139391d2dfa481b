"""On real nodes, what users of HAMi and of NVIDIA's plugin know: docs/compatibility.md."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster import Cluster
from cluster.mizar import CHART, NAMESPACE, RELEASE
from e2e.watching import card_of
from support.kube import Kube, Object
from support.objects import deployment, share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

VGPU, MIB, CORES = "nvidia.com/vgpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
CARD_MIB = 16384
REGISTER = "hami.io/node-nvidia-register"
VGPU_NOTE = "hami.io/vgpu-"


def use(cluster: Cluster, kube: Kube, **values: Any) -> None:
    """Have Mizar run with these values of its chart; it does on return."""
    cluster.helm(
        *("upgrade", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--reuse-values", "--wait"),
        "--values=-",
        input=yaml.safe_dump(values),
    )
    for name in ("daemonset/mizar-nodeagent", "deployment/mizar-webhook"):
        kube.run("rollout", "status", name, "--timeout=240s", f"--namespace={NAMESPACE}")
    # The API server goes on using its connection to a webhook that is ending, until it has ended.
    wait_for("the earlier pods to end", lambda: not leaving(kube))


def leaving(kube: Kube) -> list[Object]:
    """Mizar's pods that are being deleted and are still there."""
    return [one for one in kube.all("pods", NAMESPACE) if "deletionTimestamp" in one["metadata"]]


@pytest.fixture(scope="module")
def familiar(kube: Kube, mizar_cluster: Cluster) -> Iterator[None]:
    """Names and annotations of HAMi and NVIDIA's plugin are on; at the end they are as before."""
    use(
        mizar_cluster,
        kube,
        webhook={"resourceNames": [VGPU, MIB, CORES]},
        nodeagent={"hamiAnnotations": "JSON"},
    )
    yield
    use(mizar_cluster, kube, webhook={"resourceNames": []}, nodeagent={"hamiAnnotations": "None"})
    wait_for("the annotations to go", lambda: not registers(kube))


def registers(kube: Kube) -> dict[str, list[Object]]:
    """The cards that HAMi's dashboards would show, by node."""
    notes = {
        one["metadata"]["name"]: one["metadata"].get("annotations", {}).get(REGISTER)
        for one in kube.all("nodes")
    }
    return {node: json.loads(text) for node, text in notes.items() if text}


def vgpu_notes(kube: Kube, tenant: str, pod: str) -> dict[str, str]:
    """What HAMi's dashboards read from the pod, by the last part of the annotation's name."""
    found = kube.get("pod", pod, tenant)
    assert found is not None
    notes = found["metadata"].get("annotations", {})
    return {key[len(VGPU_NOTE) :]: notes[key] for key in notes if key.startswith(VGPU_NOTE)}


def node_of(kube: Kube, tenant: str, pod: str) -> str:
    found = kube.get("pod", pod, tenant)
    assert found is not None
    return str(found["spec"]["nodeName"])


def inside(kube: Kube, tenant: str, pod: str, *command: str) -> str:
    status, answer = kube.exec(tenant, pod, *command)
    assert status == 0, answer
    return answer


def test_a_pod_asks_for_vgpu(kube: Kube, stage: "Stage", familiar: None) -> None:
    """It gets a part of a card, its limits and variables about them, and the node says so."""
    pool = stage.pool(
        profiles=[{"devices": 2, "cards": 1, "alias": VGPU}],
        resourcePrefix=f"t{stage.mark}.example",
        shareVariables=["HAMi", "Fractions"],
        isolation={"compute": "Hard", "mayOptOut": True},
    )
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, pool=pool)
    free = share_pod(tenant, "free", VGPU)
    free["metadata"]["annotations"] = {"mizar.share/without-limits": "main"}
    kube.apply(share_pod(tenant, "bound", VGPU), free)
    kube.wait_running(tenant, "bound", "free")
    env = dict(one.partition("=")[::2] for one in inside(kube, tenant, "bound", "env").splitlines())
    assert env["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert env["MIZAR_MEMORY_FRACTION"] == env["MIZAR_COMPUTE_FRACTION"] == "0.5000"
    cards = wait_for(
        "the node to say that a card has two parts",
        lambda: [one for each in registers(kube).values() for one in each if one["count"] == 2],
    )
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{cards[0]['devmem'] // 2}m"
    wait_for(
        "each node to have told of its cards",
        lambda: {len(each) for each in registers(kube).values()} == {2},
    )
    half = f"{cards[0]['id']},NVIDIA,{cards[0]['devmem'] // 2},50:;"
    for pod in ("bound", "free"):
        notes = wait_for(
            "the pod to say which part of which card it has",
            lambda pod=pod: vgpu_notes(kube, tenant, pod),  # type: ignore[misc]
        )
        assert notes == {"devices-allocated": half, "node": node_of(kube, tenant, pod)}
    assert "libmizar" in inside(kube, tenant, "bound", "cat", "/etc/ld.so.preload")
    assert inside(kube, tenant, "free", "cat", "/etc/ld.so.preload").strip() == ""
    found = wait_for("the event", lambda: granted(kube, tenant, "free"))
    assert "it has opted out of these limits" in found


def test_a_pod_asks_for_mib_and_cores(kube: Kube, stage: "Stage", familiar: None) -> None:
    """A Deployment as it is written for HAMi: its pods get as many sixteenths of one card as the
    larger of the two needs."""
    sixteenths = {"devices": 16, "cards": 1}
    units = {MIB: CARD_MIB // 16, CORES: 6}
    sizes = [{"name": name, "devices": 16, "unitsPerDevice": n} for name, n in units.items()]
    pool = stage.pool(
        profiles=[sixteenths],
        sizes=sizes,
        resourcePrefix=f"t{stage.mark}.example",
        isolation={"compute": "Hard"},
    )
    tenant = stage.tenant({"devices": 16, "min": 0, "max": 1}, pool=pool)
    web = deployment(tenant, "web", "nvidia.com/gpu", replicas=2)
    (main,) = web["spec"]["template"]["spec"]["containers"]
    main["resources"]["limits"] |= {MIB: 3000, CORES: 30}
    kube.apply(web)
    kube.run("rollout", "status", "deployment/web", f"--namespace={tenant}", "--timeout=240s")
    kube.apply(web)
    pods = [one["metadata"]["name"] for one in kube.all("pods", tenant, "app=web")]
    assert len(pods) == 2
    for pod in pods:
        seen = inside(kube, tenant, pod, "cuda-sample", "smi")
        assert f"/ {5 * CARD_MIB // 16:6}MiB" in seen
        found = wait_for("the event", lambda pod=pod: granted(kube, tenant, pod))  # type: ignore[misc]
        assert f"memory {5 * CARD_MIB // 16} MiB" in found
    assert len({card for pod in pods for card in wait_card(kube, tenant, pod)}) == 1
    too_much = share_pod(tenant, "large", MIB, CARD_MIB + 1)
    status, said = kube.attempt("create", "--filename=-", input=yaml.safe_dump(too_much))
    assert status != 0 and f"ask for at most {CARD_MIB}, which is a whole card" in said


def wait_card(kube: Kube, tenant: str, pod: str) -> set[str]:
    """The card on which the pod's devices lie."""
    return wait_for("its devices to be held", lambda: card_of(kube, tenant, pod))


def granted(kube: Kube, tenant: str, pod: str) -> str:
    """The note of the event that a container has got its devices."""
    events = kube.all("events.events.k8s.io", tenant)
    notes = [
        str(one["note"])
        for one in events
        if one["reason"] == "DeviceGranted" and one["regarding"]["name"] == pod
    ]
    return next(iter(notes), "")
