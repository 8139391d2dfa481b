"""A real kubelet gives a device to two pods; admission and the operator are left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cluster.local_cluster import LocalCluster
from integration.agent_on_node import NODE, AgentProcess, Tenant
from integration.forgetful_kubelet import ENDING
from mizar_core.planning.snapshot import ShareView
from mizar_operator.pod_views import SharePod, pod_view
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FOLDER = Path("/var/lib/kubelet/between")
TAKES_S = 15
"""Seconds that a pod takes to end, in which another one has to be admitted."""


@dataclass
class AgentBehind(AgentProcess):
    """A node agent for which another program speaks with the kubelet."""

    def _config(self) -> dict[str, Any]:
        return super()._config() | {"pluginDir": str(FOLDER)}


@pytest.fixture(scope="module")
def agent(prepared: LocalCluster) -> Iterator[AgentProcess]:
    folder = prepared.logs_dir / f"nodeagent-{uuid4().hex[:8]}"
    folder.mkdir()
    program = [sys.executable, "-m", "integration.forgetful_kubelet", str(FOLDER)]
    shell = ["sh", "-c", f'echo $$ > {folder / "between.pid"}; exec "$@"', "between"]
    with (folder / "between.log").open("ab") as log:
        entering = prepared.entering(NODE, [*shell, *program])
        between = subprocess.Popen(entering, stdout=log, stderr=log)
    made = AgentBehind(prepared, folder)
    try:
        socket = prepared.nodes[0].path(str(FOLDER / "kubelet.sock"))
        wait_for("the program between agent and kubelet", socket.exists)
        made.start()
        yield made
        made.stop()
    finally:
        pid = (folder / "between.pid").read_text().strip()
        prepared.exec_on_node(NODE, ["kill", pid])
        between.wait(60)
        prepared.exec_on_node(NODE, ["rm", "-rf", str(FOLDER)])


def seen(tenant: Tenant, name: str) -> ShareView:
    """What the operator sees of the pod. AssertionError: the agent has not refused it yet."""
    found = pod_view(tenant.kube.get("pod", name, tenant.name) or {})
    assert isinstance(found, SharePod)
    ((_, view),) = found.demands
    assert view.given_twice, tenant.kube.describe(tenant.name, name)
    return view


def test_one_of_two_pods_with_a_device_gives_way(tenant: Tenant, prepared: LocalCluster) -> None:
    """Neither starts, and the operator sees which one it has to replace; the other one starts once
    that one is gone. Invariant 1."""
    tenant.shadow()
    tenant.share("ending", command=["sleep", "3600"])  # a first process ignores SIGTERM
    tenant.run("ending")
    prepared.nodes[0].path(str(FOLDER / ENDING)).write_text("ending")
    here = f"--namespace={tenant.name}"
    tenant.kube.run("delete", "pod", "ending", here, f"--grace-period={TAKES_S}", "--wait=false")
    for name in ("one", "two"):
        tenant.share(name)
    first, second = (
        wait_for(f"{name} to be refused", lambda name=name: seen(tenant, name), 120)  # type: ignore[misc]
        for name in ("one", "two")
    )
    assert (first.gives_way, second.gives_way) == (False, True)
    assert second.gives_way_to == (tenant.name, "one")
    told = wait_for("its event", lambda: dict(tenant.kube.events(tenant.name, "two"))[REASON])
    assert f"pod {tenant.name}/two gives way, and {tenant.name}/one starts after that" in told
    assert REASON not in dict(tenant.kube.events(tenant.name, "one"))
    tenant.kube.delete("pod", "two", tenant.name)
    tenant.run("one")
    wait_for("its device", lambda: set(tenant.holders().values()) == {"one"})


REASON = "DeviceGivenTwice"
