"""What Prometheus would scrape from the installed pods."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.binaries import Progress, ensure
from cluster.mizar import CHART, RELEASE
from e2e.watching import wait_held
from support import dashboard, metrics
from support.chart import Chart, pick
from support.kube import Kube, Object
from support.objects import share_pod
from support.promtool import fired, series_of
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SYSTEM = "mizar-system"
GIB = 1 << 30
COMPONENTS = {"operator": "Operator", "webhook": "Webhook", "nodeagent": "Node agent"}
"""The heading of each component in docs/metrics.md, by the component's label."""


def scrape(kube: Kube, component: str) -> str:
    """The metrics of all pods of a component."""
    return "\n".join(pages(kube, component, "/metrics"))


def pages(kube: Kube, component: str, path: str) -> list[str]:
    """What each pod of a component serves there, through the API server's proxy."""
    pods = kube.all("pods", SYSTEM, f"app.kubernetes.io/component={component}")
    return [
        kube.run("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{name}:{port}/proxy{path}")
        for name, port in [(one["metadata"]["name"], metrics_port(one)) for one in pods]
    ]


def metrics_port(pod: dict[str, object]) -> int:
    """The container port that is called metrics."""
    containers = pod["spec"]["containers"]  # type: ignore[index]
    ports = [port for one in containers for port in one["ports"] if port["name"] == "metrics"]
    return int(ports[0]["containerPort"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_says_what_it_is(kube: Kube, component: str) -> None:
    """mizar_build_info is there, with a version."""
    page = scrape(kube, component)
    assert "mizar_build_info{" in page and 'version="unknown"' not in page


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_real_programs_expose_is_documented_and_by_the_conventions(
    kube: Kube, stage: "Stage", component: str
) -> None:
    promtool = ensure(Progress.silent(), ["promtool"]).path("promtool")
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, isolation={"compute": "Hard"})
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    for page in pages(kube, component, "/metrics"):
        assert metrics.problems(COMPONENTS[component], page) == []
        assert metrics.lint(promtool, page) == ""


QUIET = {
    "Cards that no pod gets",
    "Idle shadow pods",
    "Waiting share pods by reason",
    "Borrowed and waited for",
    "Since the last work",
}
"""Panels that show nothing while all goes well, and no pod borrows cards or launches work."""


def test_real_figures_fill_the_dashboard_and_raise_no_alert(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, tmp_path: Path
) -> None:
    promtool = ensure(Progress.silent(), ["promtool"]).path("promtool")
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, isolation={"compute": "Hard"})
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    chart = Chart(mizar_cluster.tool("helm"))
    rules = pick(chart.render(metrics={"alerts": True}), "PrometheusRule", "mizar")["spec"]
    board = dashboard.load()

    def quiet() -> bool:
        series = [
            line
            for component in COMPONENTS
            for number, page in enumerate(pages(kube, component, "/metrics"))
            for line in series_of(page, instance=f"{component}-{number}")
        ]
        assert fired(promtool, tmp_path, rules, series) == set()
        empty = dashboard.empty_panels(promtool, tmp_path, board, series)
        assert empty <= QUIET, empty
        return True

    wait_for("the pod's figures", quiet, interval=2.0)


def test_the_dashboard_is_where_grafana_looks(kube: Kube, mizar_cluster: Cluster) -> None:
    """Its sidecar asks for ConfigMaps by a label."""

    def ask(enabled: bool) -> list[Object]:
        mizar_cluster.helm(
            *("upgrade", RELEASE, str(CHART), f"--namespace={SYSTEM}", "--reuse-values"),
            f"--set=metrics.dashboard.enabled={str(enabled).lower()}",
        )
        return kube.all("configmaps", SYSTEM, "grafana_dashboard=1")

    try:
        (found,) = ask(enabled=True)
        assert json.loads(found["data"]["mizar.json"]) == dashboard.load()
    finally:
        assert ask(enabled=False) == []


def test_a_container_s_memory_is_told(kube: Kube, stage: "Stage") -> None:
    """Limit and use of a share container, under its names."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")

    def figures() -> dict[str, float]:
        lines = [one for one in scrape(kube, "nodeagent").splitlines() if f'"{tenant}"' in one]
        return {one.split("{")[0]: float(one.rsplit(" ", 1)[1]) for one in lines}

    def told() -> bool:
        found = figures()
        assert found.get("mizar_device_memory_limit_bytes") == 8 * GIB, found
        return GIB <= found.get("mizar_device_memory_used_bytes", 0) < 2 * GIB

    wait_for("the container's memory in the figures", told)

    wait_held(kube, tenant, "a")
    found = [json.loads(one) for one in pages(kube, "nodeagent", "/debug/devices")]
    (pod,) = (pod for one in found for pod in one["sharePods"] if pod["name"] == f"{tenant}/a")
    ((container,),) = (pod["containers"],)
    (shadow,) = container["shadowPods"]
    (carved,) = (one for node in found for one in node["shadowPods"] if one["name"] == shadow)
    (held,) = (one for one in carved["devices"] if one["holder"] == f"{tenant}/a/main")
    assert container["devices"] == [held["id"]] and held["card"] in carved["cards"]
