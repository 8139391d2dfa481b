"""What Prometheus would scrape from the installed pods."""

import json
from typing import TYPE_CHECKING

import pytest

from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SYSTEM = "mizar-system"
GIB = 1 << 30


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


@pytest.mark.parametrize("component", ["operator", "webhook", "nodeagent"])
def test_every_component_says_what_it_is(kube: Kube, component: str) -> None:
    """mizar_build_info is there, with a version."""
    page = scrape(kube, component)
    assert "mizar_build_info{" in page and 'version="unknown"' not in page


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

    found = [json.loads(one) for one in pages(kube, "nodeagent", "/debug/devices")]
    (pod,) = (pod for one in found for pod in one["sharePods"] if pod["name"] == f"{tenant}/a")
    ((container,),) = (pod["containers"],)
    (shadow,) = container["shadowPods"]
    (carved,) = (one for node in found for one in node["shadowPods"] if one["name"] == shadow)
    (held,) = (one for one in carved["devices"] if one["holder"] == f"{tenant}/a/main")
    assert container["devices"] == [held["id"]] and held["card"] in carved["cards"]
