"""Limits of running pods follow their pool and quota, within seconds and without a restart."""

import re
from typing import TYPE_CHECKING, Any

import pytest

from e2e.test_compute import BUSY, wait_percent
from e2e.watching import ready_shadows, wait_event, wait_held
from support import objects
from support.kube import Kube, Object
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
SOON_S = 60.0
"""Allowance for a change that takes five seconds, seen through kubectl on a busy machine; far less
than the five minutes after which the operator looks at everything again."""
HALF_MIB = 8192


def change(kube: Kube, pool: str, **spec: Any) -> None:
    """Change the pool's spec."""
    kube.apply(objects.pool(pool, **spec))


def wait_told(kube: Kube, tenant: str, *figures: tuple[int | None, int | None]) -> None:
    """Wait until the shadow pod's devices have (memoryMiB, computePercent)."""

    def so() -> bool:
        (shadow,) = kube.all("shadowpods", tenant)
        found = [
            (one.get("memoryMiB"), one.get("computePercent")) for one in shadow["status"]["devices"]
        ]
        assert found == list(figures), found
        return True

    wait_for(f"devices of {tenant} with {figures}", so, timeout=SOON_S)


def memory_inside(kube: Kube, tenant: str, pod: str) -> int:
    """MiB that NVML says the pod may have. NVML is asked since CUDA starts no process where all is
    used."""
    status, answer = kube.exec(tenant, pod, "cuda-sample", "smi")
    assert status == 0, answer
    (total,) = re.findall(r"/ +(\d+)MiB", answer)
    return int(total)


def wait_memory(kube: Kube, tenant: str, pod: str, mib: int) -> None:
    """Wait until the pod may have so much memory."""
    wait_for(
        f"{pod} to be limited to {mib} MiB",
        lambda: memory_inside(kube, tenant, pod) == mib,
        timeout=SOON_S,
    )


def alloc(kube: Kube, tenant: str, pod: str, mib: int) -> str:
    """The result of one more allocation."""
    return kube.exec(tenant, pod, "cuda-sample", "alloc", str(mib))[1].splitlines()[0]


def restarts(kube: Kube, tenant: str, pod: str) -> int:
    found = kube.get("pod", pod, tenant)
    assert found is not None
    return sum(one["restartCount"] for one in found["status"]["containerStatuses"])


def profile(**more: Any) -> list[Object]:
    return [{"devices": 2, "cards": 1, **more}]


def test_memory_down_below_use_and_up(kube: Kube, stage: "Stage") -> None:
    """A pod that has more memory than its new limit gets no more until it has less."""
    pool = stage.pool(profiles=profile())
    tenant = stage.tenant(HALF, pool=pool)
    kube.apply(share_pod(tenant, "a", command=["cuda-sample", "hold", "5120"]))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    kube.wait_holding(tenant, "a")
    assert memory_inside(kube, tenant, "a") == HALF_MIB

    change(kube, pool, profiles=profile(memory="4Gi"))
    wait_told(kube, tenant, (4096, None), (4096, None))
    wait_memory(kube, tenant, "a", 4096)
    assert alloc(kube, tenant, "a", 64) == "CUDA_ERROR_OUT_OF_MEMORY"
    note = wait_event(kube, tenant, "a", "LimitsChanged")
    assert f"memory {HALF_MIB} MiB (Hard) → memory 4096 MiB (Hard)" in note

    change(kube, pool, profiles=profile())
    wait_memory(kube, tenant, "a", HALF_MIB)
    assert alloc(kube, tenant, "a", 1024) == "OK"
    # A second pod is limited as the first one is, on the same card.
    kube.apply(share_pod(tenant, "b"))
    kube.wait_running(tenant, "b")
    assert memory_inside(kube, tenant, "b") == HALF_MIB
    assert restarts(kube, tenant, "a") == 0


def test_compute_from_hard_to_soft_to_none_and_back(kube: Kube, stage: "Stage") -> None:
    """Measured by the time that the simulated card gives the pod."""
    pool = stage.pool(isolation={"compute": "Hard"})
    tenant = stage.tenant(HALF, pool=pool)
    kube.apply(share_pod(tenant, "a", command=BUSY))
    kube.wait_running(tenant, "a")
    wait_percent(kube, tenant, "a", 44, 51.5)
    for compute, percent, low, high in (
        ("Soft", 50, 90, 101),
        ("None", None, 90, 101),
        ("Hard", 50, 44, 51.5),
    ):
        change(kube, pool, isolation={"compute": compute})
        wait_told(kube, tenant, (HALF_MIB, percent), (HALF_MIB, percent))
        wait_percent(kube, tenant, "a", low, high)
    assert restarts(kube, tenant, "a") == 0


def test_a_quotas_override_reaches_its_pods_alone(kube: Kube, stage: "Stage") -> None:
    """Two tenants of one pool."""
    pool = stage.pool()
    one, two = stage.tenant(HALF, pool=pool), stage.tenant(HALF, pool=pool)
    for tenant in (one, two):
        kube.apply(share_pod(tenant, "a"))
        kube.wait_running(tenant, "a")
    kube.apply(objects.quota(one, HALF, pool=pool, isolation={"compute": "Soft"}))
    wait_told(kube, one, (HALF_MIB, 50), (HALF_MIB, 50))
    wait_told(kube, two, (HALF_MIB, None), (HALF_MIB, None))


def test_a_backend_that_changes(kube: Kube, stage: "Stage") -> None:
    """A pod with the shim keeps it. A pod without one says that it has no limits, and does not
    start again without the shim."""
    pool = stage.pool(isolation={"compute": "Hard"})
    tenant = stage.tenant({**HALF, "max": 2}, pool=pool)
    kube.apply(share_pod(tenant, "shimmed"))
    kube.wait_running(tenant, "shimmed")

    change(kube, pool, isolation={"backend": "None"})
    wait_told(kube, tenant, (HALF_MIB, None), (HALF_MIB, None))
    assert "keeps its memory limits" in wait_event(kube, tenant, "shimmed", "LimitsChanged")
    assert memory_inside(kube, tenant, "shimmed") == HALF_MIB
    kube.apply(share_pod(tenant, "free"))
    kube.wait_running(tenant, "free")
    # It gets a signal below, which its first process receives only once it handles it.
    kube.wait_holding(tenant, "free")
    assert memory_inside(kube, tenant, "free") == 2 * HALF_MIB

    change(kube, pool, isolation={"compute": "Soft"})
    wait_told(kube, tenant, (HALF_MIB, 50), (HALF_MIB, 50))
    assert "delete the pod" in wait_event(kube, tenant, "free", "IsolationNotEnforced")
    kube.exec(tenant, "free", "sh", "-c", "kill 1")

    def refused() -> bool:
        found = kube.get("pod", "free", tenant)
        assert found is not None
        state = found["status"]["containerStatuses"][0]["state"]
        return "without Mizar's shim" in str(state.get("waiting", {}).get("message"))

    wait_for("the container not to start again", refused)


def test_another_shape_gives_way_when_idle(kube: Kube, stage: "Stage") -> None:
    """Its users keep what they have; the next pod gets a shadow pod of the new shape."""
    pool = stage.pool(profiles=profile())
    tenant = stage.tenant({**HALF, "max": 2}, pool=pool)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    (old,) = ready_shadows(kube, tenant)
    # A profile's cards cannot be changed, nor taken away as long as a quota names it.
    other = {"devices": 4, "cards": 2}
    change(kube, pool, profiles=[*profile(), other])
    kube.apply(objects.quota(tenant, {**HALF, "devices": 4}, pool=pool))
    change(kube, pool, profiles=[other])
    change(kube, pool, profiles=[{"devices": 2, "cards": 2}, other])
    kube.apply(objects.quota(tenant, {**HALF, "max": 2}, pool=pool))

    def takes_nobody() -> bool:
        found = kube.get("shadowpod", old["metadata"]["name"], tenant)
        assert found is not None
        health = [one["health"] for one in found["status"]["devices"]]
        return sorted(health) == ["Healthy", "Unhealthy"]

    wait_for("the free device to be offered no more", takes_nobody)
    kube.apply(share_pod(tenant, "b"))
    kube.wait_running(tenant, "b")
    shadows = {one["metadata"]["name"]: one for one in ready_shadows(kube, tenant, 2)}
    (new,) = (one for name, one in shadows.items() if name != old["metadata"]["name"])
    assert new["spec"]["cards"] == 2
    assert restarts(kube, tenant, "a") == 0
    kube.delete("pod", "a", tenant)
    kube.wait_gone("shadowpod", tenant, old["metadata"]["name"])
