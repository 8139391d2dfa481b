"""Share pods of higher priority preempt others only where no card is free for them."""

from typing import TYPE_CHECKING

import pytest

from e2e.watching import ready_shadows
from support.kube import Kube
from support.objects import share_pod

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PROFILE = {"devices": 2, "min": 0}


@pytest.fixture
def urgent(stage: "Stage") -> str:
    """A PriorityClass above that of other pods."""
    return stage.priority_class("urgent", 1000)


def fill(kube: Kube, tenant: str, name: str, **spec: object) -> str:
    """Run a pod that uses both devices of a shadow pod on the first node; returns its UID."""
    node = min(str(one["metadata"]["name"]) for one in kube.all("nodes"))
    here = {"kubernetes.io/hostname": node}
    kube.apply(share_pod(tenant, name, count=2, nodeSelector=here, **spec))  # type: ignore[arg-type]
    kube.wait_running(tenant, name)
    return uid(kube, tenant, name) or ""


def uid(kube: Kube, tenant: str, name: str) -> str | None:
    found = kube.get("pod", name, tenant)
    return str(found["metadata"]["uid"]) if found else None


def test_nobody_is_preempted_while_a_card_is_free(kube: Kube, stage: "Stage", urgent: str) -> None:
    """The scheduler alone would end the first pod at once."""
    tenant = stage.tenant({**PROFILE, "max": 2})
    first = fill(kube, tenant, "first")
    fill(kube, tenant, "second", priorityClassName=urgent)
    assert uid(kube, tenant, "first") == first
    assert not [why for why, _ in kube.events(tenant, "first") if why == "Preempted"]
    assert len(ready_shadows(kube, tenant, 2)) == 2


def test_a_pod_is_preempted_where_the_quota_is_exhausted(
    kube: Kube, stage: "Stage", urgent: str
) -> None:
    tenant = stage.tenant({**PROFILE, "max": 1})
    fill(kube, tenant, "first")
    fill(kube, tenant, "second", priorityClassName=urgent)
    assert uid(kube, tenant, "first") is None
