"""Values of the chart are changed while pods share and borrow cards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.mizar import CHART, RELEASE
from e2e.components import SYSTEM, WORKLOADS, wait_component
from e2e.test_spot import borrowing, lender, start_borrower
from e2e.test_upgrade import containers
from e2e.watching import wait_held
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HERE = f"--namespace={SYSTEM}"


def changed(on: Cluster, *settings: str, flags: tuple[str, ...] = ()) -> tuple[int, str]:
    """Change values of the release; exit status of helm and all that it prints."""
    sets = [f"--set={one}" for one in settings]
    done = on.helm(
        *("upgrade", RELEASE, str(CHART), HERE, "--reset-then-reuse-values", *sets, *flags),
        check=False,
    )
    return done.returncode, f"{done.stdout}{done.stderr}"


@contextmanager
def with_values(kube: Kube, on: Cluster, *settings: str) -> Iterator[None]:
    """Inside, the release has these values; afterwards the former ones again."""
    before = json.loads(on.helm("status", RELEASE, HERE, "--output=json").stdout)["version"]
    try:
        status, said = changed(on, *settings)
        assert status == 0, said
        yield
    finally:
        on.helm("rollback", RELEASE, str(before), HERE)
        for component in WORKLOADS:
            wait_component(kube, component)


def try_only(on: Cluster, *settings: str) -> tuple[int, str]:
    """What `changed` would do and print, without doing it."""
    return changed(on, *settings, flags=("--dry-run=server",))


def test_what_cannot_be_changed_is_refused_before_anything_is_changed(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "train"))
    kube.wait_running(tenant, "train")
    wait_held(kube, tenant, "train")
    refused = {
        "nameOverride=other": "nameOverride cannot be changed while Mizar is installed",
        "nodeagent.stateDir=/var/lib/other": (
            "nodeagent.stateDir cannot be changed from /var/lib/mizar to /var/lib/other while pods"
            f" share or borrow cards, since their limits would never be updated again: end {tenant}"
            "/train first"
        ),
        "shadowPods.priorityClass.value=5": (
            "Kubernetes does not allow changing the value of PriorityClass mizar-shadow-pods from"
            " 1000000000 to 5: change shadowPods.priorityClass.name as well"
        ),
        "shadowPods.priorityClass.create=false,shadowPods.priorityClass.name=mizar-shadow-pods": (
            "this upgrade would delete PriorityClass mizar-shadow-pods"
        ),
    }
    for setting, sentence in refused.items():
        status, said = try_only(mizar_cluster, setting)
        assert status != 0 and sentence in said, said
    status, said = try_only(mizar_cluster, "nodeagent.stateDir=/var/lib/mizar/")
    assert status == 0, said


def test_helm_says_what_the_default_pool_does_not_follow(mizar_cluster: Cluster) -> None:
    status, said = try_only(mizar_cluster, "defaultPool.spec.idleTimeoutSeconds=12345")
    assert status == 0, said
    assert "differs from defaultPool.spec in idleTimeoutSeconds" in said
    status, said = try_only(mizar_cluster, "defaultPool.spec.tenancy=PerNamespace")
    assert status == 0 and "differs from defaultPool.spec" not in said, said


def test_forced_upgrades_take_no_lent_card_back(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """helm replaces all objects, also those that the programs have written to."""
    lender(kube, stage)
    borrows = borrowing(kube, stage)
    start_borrower(kube, borrows, "train")
    before = containers(kube, borrows, "train")
    status, said = changed(mizar_cluster, flags=("--force",))
    assert status == 0, said
    wait_for("the rules to be written again", lambda: rules(kube))
    for component in WORKLOADS:
        wait_component(kube, component)
    kube.run("rollout", "restart", "daemonset/mizar-nodeagent", HERE)
    wait_component(kube, "nodeagent")
    assert containers(kube, borrows, "train") == before


def rules(kube: Kube) -> bool:
    """Whether the agents know which cards may be lent."""
    found = kube.get("configmap", "mizar-spot", SYSTEM) or {}
    return '"pool"' in (found.get("data") or {}).get("rules.json", "")
