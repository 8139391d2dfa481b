"""A cluster of two tenants, where something goes wrong for the first one. The second must not
notice anything, and what the first has must stay as it is."""

from __future__ import annotations

from collections.abc import Callable

from mizar_kube.kinds import POD, SHADOW_POD, Object
from stateful.harness import KINDS, Harness
from stateful.model import Model

TENANTS = ("team-a", "team-b")


def cluster() -> Model:
    """Two tenants, each with a shadow pod in use; the first one's quota keeps another ready."""
    made = Model()
    made.add_pool(idleTimeoutSeconds=60)
    for number, tenant in enumerate(TENANTS):
        made.add_node(f"n{number}")
        least, most = (1, 1) if tenant == "team-a" else (0, 2)
        made.add_quota(tenant, [{"devices": 2, "min": least, "max": most}])
        made.add_share(tenant, "first", resource(tenant), 1)
    return made


def operator_in(model: Model) -> Harness:
    """An operator that has served both tenants."""
    operator = Harness(model)
    work(model, operator, rounds=8)
    assert len(shadows(model, "team-a")) == len(shadows(model, "team-b")) == 1
    return operator


def resource(tenant: str) -> str:
    """The resource that the tenant's share pods request."""
    return f"{tenant}.mizar.share/gpu.2"


def shadows(model: Model, tenant: str) -> list[Object]:
    """The tenant's ShadowPods."""
    return [one for one in model.api.all(SHADOW_POD) if one["metadata"]["namespace"] == tenant]


def work(model: Model, operator: Harness, rounds: int = 8, seconds: float = 2) -> None:
    """Let every part of the cluster take a step, for that many rounds, `seconds` apart."""
    for _ in range(rounds):
        model.schedule()
        for node in model.nodes:
            model.kubelet(node)
            model.agent(node)
        operator.sync(KINDS)
        for key in sorted(operator.caches.keys()):
            operator.reconcile(key)
        model.tick(seconds)


def all_of_b_works(model: Model, operator: Harness) -> None:
    """Check that the tenant's new share pod is served, and that idle shadow pods go."""
    model.add_share("team-b", "second", resource("team-b"), 2)
    work(model, operator)
    pods = [model.api.find(POD, name, "team-b") for name in ("first", "second")]
    assert all(pod is not None and pod["spec"].get("nodeName") for pod in pods)
    for pod in pods:
        assert pod is not None
        model.api.start_delete(pod)
    work(model, operator, rounds=15, seconds=10)
    assert shadows(model, "team-b") == []


def all_of_a_is_there(model: Model) -> None:
    """Its shadow pod is neither drained nor ended, nor is its share pod."""
    (shadow,) = shadows(model, "team-a")
    pod = model.api.find(POD, shadow["metadata"]["name"], "team-a")
    assert pod is not None
    for one in (shadow, pod):
        assert "deletionTimestamp" not in one["metadata"]
    assert "mizar.share/drain" not in pod["metadata"]["annotations"]
    share = model.api.find(POD, "first", "team-a")
    assert share is None or "deletionTimestamp" not in share["metadata"]


def ends(model: Model, operator: Harness, tenant: str) -> None:
    """The tenant's first share pod ends, and all parts have seen it."""
    model.api.start_delete(first(model, tenant))
    work(model, operator)


def first(model: Model, tenant: str) -> Object:
    """The tenant's first share pod."""
    pod = model.api.find(POD, "first", tenant)
    assert pod is not None
    return pod


def condition(obj: Object | None, type: str) -> Object:
    """The object's condition of that type."""
    assert obj is not None
    return dict(next(one for one in obj["status"]["conditions"] if one["type"] == type))


def spoil(model: Model, obj: Object | None, change: Callable[[Object], None]) -> None:
    """Change the object as a user would."""
    assert obj is not None
    change(obj)
    model.api.touch(obj)
