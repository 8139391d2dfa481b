"""`helm test` says which parts of the installation work."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.mizar import RELEASE
from e2e.components import SYSTEM
from support.kube import Kube
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HELM_TEST = ("test", RELEASE, f"--namespace={SYSTEM}")


def test_it_names_what_works_and_what_does_not(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    empty = stage.pool(nodeSelector={"example.com/no": "node"})
    wait_for("the pool's condition", lambda: kube.get("gpupool", empty)["status"]["conditions"])  # type: ignore[index]
    broken = mizar_cluster.helm(*HELM_TEST, check=False)
    assert broken.returncode, "a pool without cards is a problem"
    (problem,) = [one for one in broken.stderr.splitlines() if "PROBLEM" in one]
    assert f"pool {empty} has no card: no node that nodeSelector" in problem
    kube.delete("gpupool", empty)

    works = mizar_cluster.helm(*HELM_TEST).stderr  # helm prints logs there
    assert "ok      2 node agents ready: containers get their cards by " in works
    assert "ok      webhook: 1 pod ready" in works
    assert not kube.get("pod", f"{RELEASE}-installation-check", SYSTEM), "helm removes what worked"
