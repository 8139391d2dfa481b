"""Checks an installation: what `helm test` runs (`python -m mizar_operator.installation_check`).

It prints a line for each part that works, and for each problem a line that says what to do. Its
exit code is 1 if there is a problem. It only reads from the API server.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mizar_core.names import (
    PHYSICAL_RESOURCE,
    POD_CONDITION_CARD_ACCESS,
    POD_CONDITION_SETTINGS,
)
from mizar_core.pod_requests import whole_count
from mizar_core.quantities import counted, first_of
from mizar_kube import logs
from mizar_kube import settings as common
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError, KubeError, NotFound
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, POD, RESOURCE_SLICE, Object
from mizar_kube.settings import load
from mizar_operator.crd_check import lacking_fields
from mizar_operator.object_views import Json, condition_of
from mizar_operator.resource_slices import OF_DRIVER, slice_view

COMPONENT = "app.kubernetes.io/component"
NODES_NAMED = 20
"""The most nodes that are named for one problem; further ones are counted."""


class Settings(common.Settings):
    """Says whether the installation works: exit code 0 if it does, 1 if something is wrong."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-installation-check")

    namespace: str = Field(
        "mizar-system", description=f"namespace of the release; {common.IF_NAMESPACE_UNSET}"
    )
    release: str = Field("mizar", description="value of app.kubernetes.io/instance of its pods")
    node_selector: dict[str, str] = Field(
        {}, description="labels of the nodes on which node agents run"
    )


class Line(NamedTuple):
    """One finding. `problem`: whether something has to be done."""

    text: str
    problem: bool = False


@dataclass(frozen=True)
class Found:
    """What the API server has. `pods`: those of the release. `lacking`: fields of this version that
    its CRDs lack. `by_dra`: the nodes on which NVIDIA's DRA driver offers cards, with the resource
    of these."""

    pods: Sequence[Object]
    nodes: Sequence[Object]
    pools: Sequence[Object]
    quotas: Sequence[Object]
    lacking: Sequence[str] = ()
    by_dra: frozenset[tuple[str, str]] = frozenset()


async def find(client: KubeClient, settings: Settings) -> Found:
    """Read everything that is checked. Raises KubeError."""
    selector = f"app.kubernetes.io/instance={settings.release}"
    listed = await asyncio.gather(
        client.list(POD, settings.namespace, label_selector=selector),
        client.list(NODE),
        client.list(GPU_POOL),
        client.list(GPU_QUOTA),
    )
    pods, nodes, pools, quotas = (one.items for one in listed)
    return Found(
        pods, nodes, pools, quotas, await lacking_fields(client), await _nodes_by_dra(client)
    )


async def _nodes_by_dra(client: KubeClient) -> frozenset[tuple[str, str]]:
    try:
        slices = await client.list(RESOURCE_SLICE, field_selector=OF_DRIVER)
    except NotFound:  # before Kubernetes 1.34
        return frozenset()
    views = [view for one in slices.items if (view := slice_view(one)) is not None]
    return frozenset((one.node, devices.resource) for one in views for devices in one.devices)


def report(found: Found, settings: Settings) -> list[Line]:
    """All findings, problems last."""
    lines = [
        _crds(found.lacking),
        *(_program(found.pods, name, settings) for name in ("operator", "webhook")),
        *_nodes(found, settings),
        *_pools(found.pools),
        _quotas(found.quotas),
    ]
    return sorted(lines, key=lambda one: one.problem)


def _crds(lacking: Sequence[str]) -> Line:
    if not lacking:
        return Line("the CRDs have all fields of this version")
    return Line(
        f"the CRDs lack {first_of(lacking, 3)}: apply those of this version,"
        " kubectl apply --server-side --force-conflicts --filename charts/mizar/crds",
        problem=True,
    )


def _program(pods: Sequence[Object], name: str, settings: Settings) -> Line:
    mine = [one for one in pods if _component(one) == name]
    ready = sum(_is_ready(one) for one in mine)
    if mine and ready == len(mine):
        return Line(f"{name}: {counted(ready, 'pod')} ready")
    look = f"kubectl --namespace {settings.namespace} describe pods --selector {COMPONENT}={name}"
    return Line(f"{name}: {ready} of {counted(len(mine), 'pod')} ready: {look}", problem=True)


def _nodes(found: Found, settings: Settings) -> Iterator[Line]:
    """Lines about node agents, one for all nodes of which the same is said, and about nodes with
    cards but no agent."""
    agents = {
        str(one["spec"].get("nodeName")): one
        for one in found.pods
        if _component(one) == "nodeagent"
    }
    resources = _physical_resources(found.pools)
    working, problems = Counter[str](), dict[str, list[str]]()
    for node in found.nodes:
        name, agent = str(node["metadata"]["name"]), agents.get(str(node["metadata"]["name"]))
        if agent is None:
            by_dra = {resource for node, resource in found.by_dra if node == name}
            if resources & by_dra or _cards(node, resources):
                problems.setdefault(_why_no_agent(node, settings), []).append(name)
        elif wrong := _agent_problem(agent, settings):
            problems.setdefault(wrong, []).append(name)
        else:
            working[_condition(agent, POD_CONDITION_CARD_ACCESS).get("message", "")] += 1
    for message, count in sorted(working.items()):
        yield Line(f"{counted(count, 'node agent')} ready: {message}")
    for wrong, names in sorted(problems.items()):
        yield Line(f"{first_of(names, NODES_NAMED)}: {wrong}", problem=True)
    if not working and not problems:
        yield Line(_no_nodes(settings), problem=True)


def _no_nodes(settings: Settings) -> str:
    labels = ",".join(f"{key}={value}" for key, value in settings.node_selector.items())
    return (
        f"no node agent runs, and no node offers {PHYSICAL_RESOURCE}: check that NVIDIA's device"
        " plugin or DRA driver runs, and that GPU nodes have the labels of nodeagent.nodeSelector"
        f" ({labels})"
    )


def _why_no_agent(node: Object, settings: Settings) -> str:
    labels = node["metadata"].get("labels") or {}
    lacking = [f"{k}={v}" for k, v in settings.node_selector.items() if labels.get(k) != v]
    if lacking:
        return f"cards but no node agent; missing labels: {', '.join(lacking)}"
    return (
        "cards but no node agent: see why with"
        f" kubectl --namespace {settings.namespace} describe daemonsets"
    )


def _agent_problem(agent: Object, settings: Settings) -> str:
    """What is wrong on the agent's node; empty if nothing is."""
    if not _is_ready(agent):
        path = f"/api/v1/namespaces/{settings.namespace}/pods/POD:PORT/proxy/readyz"
        return (
            f"the node agent is not ready: see why with kubectl get --raw {path}, with the pod of"
            " this node and the port nodeagent.metricsPort"
        )
    for kind in (POD_CONDITION_CARD_ACCESS, POD_CONDITION_SETTINGS):
        found = _condition(agent, kind)
        if found.get("status") == "False":
            return str(found.get("message"))
    return ""


def _pools(pools: Sequence[Object]) -> Iterator[Line]:
    if not pools:
        yield Line("there is no GPUPool: create one, or set defaultPool.create", problem=True)
    for pool in pools:
        cards = (pool.get("status") or {}).get("cards") or {}
        total, name = int(cards.get("total", 0)), pool["metadata"]["name"]
        if total:
            yield Line(
                f"pool {name}: {counted(total, 'card')}, {cards.get('held', 0)} of them held"
            )
        else:
            look = f"kubectl describe gpupool {name}"
            yield Line(f"pool {name} has no card: {_pool_reason(pool) or look}", problem=True)


def _pool_reason(pool: Object) -> str:
    conditions = (pool.get("status") or {}).get("conditions") or ()
    return "; ".join(str(one["message"]) for one in conditions if one.get("message"))


def _quotas(quotas: Sequence[Object]) -> Line:
    tenants = {str(one["metadata"]["namespace"]) for one in quotas}
    if not tenants:
        return Line("no namespace has a GPUQuota yet, so none can share cards")
    return Line(f"{counted(len(tenants), 'namespace')} with a GPUQuota")


def _physical_resources(pools: Iterable[Object]) -> set[str]:
    specs = ((pool.get("spec") or {}) for pool in pools)
    return {PHYSICAL_RESOURCE, *(str(one.get("physicalResource", "")) for one in specs)} - {""}


def _cards(node: Object, resources: Collection[str]) -> int:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return sum(whole_count(capacity.get(one, 0)) for one in resources)


def _component(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(COMPONENT, ""))


def _is_ready(pod: Object) -> bool:
    return _condition(pod, "Ready").get("status") == "True"


def _condition(pod: Object, kind: str) -> Json:
    return condition_of(pod.get("status") or {}, kind)


async def check(settings: Settings) -> list[Line]:
    """The findings on the cluster. Raises ConfigError, KubeError."""
    async with await KubeClient.connect(settings.kubeconfig) as client:
        return report(await find(client, settings), settings)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the check. Exits with code 1 if there are problems, or if the API server does
    not answer."""
    settings = load(Settings, argv)
    logs.set_up(settings.log_level, settings.log_format)
    try:
        lines = asyncio.run(check(settings))
    except (ConfigError, KubeError) as error:
        sys.exit(f"the installation could not be checked: {error}")
    for line in lines:
        print(f"{'PROBLEM' if line.problem else 'ok     '} {line.text}", flush=True)
    if problems := sum(line.problem for line in lines):
        sys.exit(f"{counted(problems, 'problem')} found")


if __name__ == "__main__":
    main()
