"""Questions that many end-to-end tests ask."""

from support.kube import Kube, Object, condition
from support.waiting import wait_for

rare: list[str] = []
"""What tests met that may happen, but seldom should: the run's summary shows it."""


def ready_shadows(kube: Kube, tenant: str, count: int = 1, timeout: float = 180) -> list[Object]:
    """Wait until exactly `count` ShadowPods of the tenant are Ready and give them by name."""

    def probe() -> list[Object] | None:
        shadows = kube.all("shadowpods", tenant)
        ready = [one for one in shadows if _is(one, "Ready")]
        return ready if len(ready) == len(shadows) == count else None

    found = wait_for(f"{count} ready shadow pods of {tenant}", probe, timeout)
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


def holders(kube: Kube, tenant: str) -> dict[str, str]:
    """Pod name by virtual device ID, over the tenant's shadow pods."""
    return {
        device["id"]: f"{device['holder']['namespace']}/{device['holder']['name']}"
        for shadow in kube.all("shadowpods", tenant)
        for device in shadow.get("status", {}).get("devices", [])
        if device.get("holder")
    }


def wait_held(kube: Kube, tenant: str, *pods: str, timeout: float = 120) -> dict[str, str]:
    """Wait until exactly these pods hold the tenant's devices; gives pod name by device ID."""
    want = sorted(f"{tenant}/{pod}" for pod in pods)

    def probe() -> dict[str, str]:
        held = holders(kube, tenant)
        assert sorted(set(held.values())) == want, f"held: {held}"
        return held

    return wait_for(f"{want} to hold the devices of {tenant}", probe, timeout)


def card_of(kube: Kube, tenant: str, pod: str) -> set[str]:
    """UUIDs of the cards on which the pod's devices lie, by the ShadowPods' status."""
    return {
        str(device["card"])
        for shadow in kube.all("shadowpods", tenant)
        for device in shadow.get("status", {}).get("devices", [])
        if (device.get("holder") or {}).get("name") == pod
    }


def cards_seen_inside(kube: Kube, tenant: str, pod: str) -> set[str]:
    """UUIDs that the driver shows inside the pod."""
    status, answer = kube.exec(tenant, pod, "cuda-sample", "smi")
    assert status == 0, answer
    return {word for word in answer.replace("|", " ").split() if word.startswith(("GPU-", "MIG-"))}


def wait_event(kube: Kube, tenant: str, name: str, *reasons: str, timeout: float = 120) -> str:
    """Wait for an event with one of these reasons about the object; gives its message."""

    def probe() -> str | None:
        for reason, message in kube.events(tenant, name):
            if reason in reasons:
                return message or reason
        raise AssertionError(f"events so far: {kube.events(tenant, name)}")

    return wait_for(f"an event {' or '.join(reasons)} on {tenant}/{name}", probe, timeout)


def _is(obj: Object, kind: str) -> bool:
    try:
        return bool(condition(obj, kind)["status"] == "True")
    except LookupError:
        return False
