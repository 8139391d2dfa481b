"""Share pods on a shadow pod's card: what everything else depends on."""

import re
from typing import TYPE_CHECKING

import pytest

from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_held
from support.kube import Kube, Object
from support.objects import deployment, share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
CARD_MIB = 16384


def test_two_pods_share_a_card_and_are_kept_within_their_memory(kube: Kube, stage: "Stage") -> None:
    """One shadow pod, two devices, two pods on one card, each limited to its half."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    kube.wait_running(tenant, "a", "b")
    (shadow,) = ready_shadows(kube, tenant)
    held = wait_held(kube, tenant, "a", "b")

    assert sorted(held) == [f"{tenant}/{shadow['metadata']['name']}-{i}" for i in range(2)]
    assert cards_seen_inside(kube, tenant, "a") == cards_seen_inside(kube, tenant, "b")
    assert cards_seen_inside(kube, tenant, "a") == card_of(kube, tenant, "a")

    status, answer = kube.exec(tenant, "a", "cuda-sample", "alloc", str(CARD_MIB // 2))
    assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
    status, answer = kube.exec(tenant, "a", "cuda-sample", "alloc", str(CARD_MIB // 4))
    assert status == 0, answer
    _, figures = kube.exec(tenant, "b", "cuda-sample", "smi")
    assert str(CARD_MIB // 2) in figures and str(CARD_MIB) not in figures


@pytest.mark.parametrize("api", ["alloc", "pitch", "managed", "async"])
def test_each_way_to_allocate_is_limited(kube: Kube, stage: "Stage", api: str) -> None:
    """Every family of allocation calls is held to the same limit."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    over = str(CARD_MIB // 2)
    status, answer = kube.exec(tenant, "a", "cuda-sample", "alloc", over, "--api", api)
    assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer


def test_devices_of_a_deleted_pod_are_used_again(kube: Kube, stage: "Stage") -> None:
    """With quota for one shadow pod, a third pod runs once the first is gone, on its device."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    kube.wait_running(tenant, "a", "b")
    before = wait_held(kube, tenant, "a", "b")
    kube.delete("pod", "a", tenant)
    kube.apply(share_pod(tenant, "c"))
    kube.wait_running(tenant, "c")
    after = wait_held(kube, tenant, "b", "c")
    assert sorted(before) == sorted(after)


def test_idle_shadow_pod_gives_its_card_back(kube: Kube, stage: "Stage") -> None:
    """The pods end, the shadow pod is idle, drained and reaped; then whole-card pods get every card
    of the cluster."""
    tenant = stage.tenant(HALF, pool=stage.pool(idleTimeoutSeconds=3))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    kube.delete("pod", "a", tenant)
    wait_for("the shadow pod to be reaped", lambda: not kube.all("shadowpods", tenant))
    wait_for("its pod to go", lambda: not kube.all("pods", tenant))
    for node in ("left", "right"):
        kube.apply(whole_card_pod(tenant, node, cards=2))
    kube.wait_running(tenant, "left", "right")


def test_four_devices_over_two_cards(kube: Kube, stage: "Stage") -> None:
    """Profile 4→2: one shadow pod holds two cards; devices 0, 1 on one and 2, 3 on the other."""
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1})
    pods = ["a", "b", "c", "d"]
    kube.apply(*(share_pod(tenant, name, "mizar.share/gpu.4") for name in pods))
    kube.wait_running(tenant, *pods)
    (shadow,) = ready_shadows(kube, tenant)
    wait_held(kube, tenant, *pods)
    cards = [one["uuid"] for one in shadow["status"]["cards"]]
    assert len(set(cards)) == 2
    assert [one["card"] for one in shadow["status"]["devices"]] == [
        cards[0],
        cards[0],
        cards[1],
        cards[1],
    ]
    for pod in pods:
        assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod)


def test_pod_that_asks_for_two_devices_gets_their_sum(kube: Kube, stage: "Stage") -> None:
    """Two devices on one card add up to the whole card's memory."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a", count=2))
    kube.wait_running(tenant, "a")
    _, figures = kube.exec(tenant, "a", "cuda-sample", "smi")
    assert str(CARD_MIB) in figures


def test_a_container_over_two_cards_has_its_part_of_each(kube: Kube, stage: "Stage") -> None:
    """Three of four devices over two cards: all of one card, and half of the other one."""
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "a", "mizar.share/gpu.4", count=3))
    kube.wait_running(tenant, "a")
    (shadow,) = ready_shadows(kube, tenant)
    wait_held(kube, tenant, "a")
    cards = {one["uuid"] for one in shadow["status"]["cards"]}
    assert cards_seen_inside(kube, tenant, "a") == card_of(kube, tenant, "a") == cards
    _, figures = kube.exec(tenant, "a", "cuda-sample", "smi")
    sizes = re.findall(r"/ +(\d+)MiB", figures)
    assert sorted(map(int, sizes)) == [CARD_MIB // 2, CARD_MIB], figures
    for device, size in enumerate(map(int, sizes)):
        for mib, expected in ((size, 3), (size // 2, 0)):
            words = ("alloc", str(mib), "--device", str(device))
            status, answer = kube.exec(tenant, "a", "cuda-sample", *words)
            assert status == expected, answer


def test_a_pod_that_demands_one_card_is_replaced_until_it_gets_one(
    kube: Kube, stage: "Stage"
) -> None:
    """A pool of one card: the container does not start with a device of each of two cards, and the
    kubelet never gives it others."""
    profile = {"devices": 4, "cards": 2}
    pool = stage.pool(sameCard=True, profiles=[profile])
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1}, pool=pool)
    names = ["a", "b", "c", "d"]
    kube.apply(*(share_pod(tenant, name, "mizar.share/gpu.4") for name in names))
    kube.wait_running(tenant, *names)
    wait_held(kube, tenant, *names)
    cards = {name: card_of(kube, tenant, name) for name in names}
    left = {next(one for one in names if cards[one] == card) for card in cards.values()}
    assert len(left) == 2, cards
    for name in set(names) - left:
        kube.delete("pod", name, tenant)
    wait_held(kube, tenant, *left)

    wide = deployment(tenant, "wide", "mizar.share/gpu.4")
    limits = wide["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["mizar.share/gpu.4"] = 2
    kube.apply(wide)
    first = wait_for("the first pod to be evicted", lambda: _evicted(kube, tenant, "wide"))
    assert "its devices are on several" in first
    kube.delete("pod", left.pop(), tenant)

    def runs() -> str | None:
        pods = kube.all("pods", tenant, "app=wide")
        return next((_name(one) for one in pods if one["status"]["phase"] == "Running"), None)

    # The second pod may have been refused before a card was free: it is evicted a minute later.
    name = wait_for("a pod on one card", runs, timeout=300)
    assert len(card_of(kube, tenant, name)) == 1


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _evicted(kube: Kube, tenant: str, app: str) -> str | None:
    """The message of the eviction of one of the Deployment's pods."""
    found = kube.all("events", tenant)
    return next(
        (
            str(one["message"])
            for one in found
            if one["reason"] == "ShareEvicted" and one["involvedObject"]["name"].startswith(app)
        ),
        None,
    )


def test_each_container_of_many_has_its_own_limits(
    kube: Kube, stage: "Stage", possible_faults: list[str]
) -> None:
    """Equal pods at once, and one with an init container, a sidecar and two containers; then some
    are deleted by force and made anew under their names."""
    tenths = {"devices": 10, "cards": 1}
    tenant = stage.tenant({"devices": 10, "min": 0, "max": 2}, pool=stage.pool(profiles=[tenths]))
    names = [f"equal-{number}" for number in range(8)]
    kube.apply(*(tenth(tenant, name) for name in names), many_containers(tenant))
    kube.wait_running(tenant, *names, "many")
    for name in names:
        check_limits(kube, tenant, name, "main", 1)
    check_limits(kube, tenant, "many", "proxy", 1)
    check_limits(kube, tenant, "many", "main", 2)
    check_limits(kube, tenant, "many", "side", 1)
    before = {name: uid(kube, tenant, name) for name in names[:3]}
    # The kubelet has forgotten such a pod before its container has ended.
    possible_faults += [f"{tenant}/{name}/main has card" for name in before]
    for name in before:
        kube.delete("pod", name, tenant, "--force", "--grace-period=0")
        kube.apply(tenth(tenant, name))
    kube.wait_running(tenant, *before)
    for name in names:
        check_limits(kube, tenant, name, "main", 1)
    assert all(uid(kube, tenant, name) != earlier for name, earlier in before.items())


def tenth(tenant: str, name: str) -> Object:
    """A pod with a tenth of a card."""
    return share_pod(tenant, name, "mizar.share/gpu.10", command=["cuda-sample", "hold", "64"])


def many_containers(tenant: str) -> Object:
    """A pod whose main container gets its init container's devices, and whose sidecar keeps its
    own."""
    pod = tenth(tenant, "many")
    (main,) = pod["spec"]["containers"]
    main["resources"]["limits"]["mizar.share/gpu.10"] = 2

    def like(name: str, **changes: object) -> Object:
        limits = {"mizar.share/gpu.10": 1}
        return {**main, "name": name, "resources": {"limits": limits}, **changes}

    pod["spec"]["containers"].append(like("side"))
    pod["spec"]["initContainers"] = [
        like("prepare", command=["cuda-sample", "alloc", "16"]),
        like("proxy", restartPolicy="Always"),
    ]
    return pod


def check_limits(kube: Kube, tenant: str, name: str, container: str, devices: int) -> None:
    """Assert that the container's limits name its pod and itself, and are that many tenths of a
    card."""
    words = f"grep -q {uid(kube, tenant, name)} /run/mizar/limits && cuda-sample smi"
    text = kube.run(
        "exec",
        name,
        f"--namespace={tenant}",
        f"--container={container}",
        "--",
        "sh",
        "-c",
        f"grep -q {container} /run/mizar/limits && {words}",
    )
    assert str(CARD_MIB * devices // 10) in text, text


def uid(kube: Kube, tenant: str, name: str) -> str:
    """The UID of the tenant's pod of that name."""
    pod = kube.get("pod", name, tenant)
    assert pod is not None
    return str(pod["metadata"]["uid"])
