"""The objects of a large cluster, and simulated parts of the scheduler and the node agent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from mizar_core.names import FIELD_MANAGER_NODEAGENT, LABEL_SHADOW_POD, LABEL_SHARE_POD
from mizar_kube.client import KubeClient
from mizar_kube.errors import Unavailable
from mizar_kube.kinds import POD, SHADOW_POD, Object
from support import objects

T = TypeVar("T")

AT_ONCE = 48
TRIES = 5
DEVICES = 2
MODEL = "NVIDIA-A100-SXM4-40GB"
CARD_MIB = 40_960
OTHER_LABELS = 38
"""Labels of each node that Mizar does not read: GPU feature discovery alone sets some thirty."""


@dataclass(frozen=True)
class Size:
    """The size of the cluster: nodes of `cards` cards each, and share pods of one device in that
    many tenants."""

    nodes: int = 5_000
    cards: int = 8
    shares: int = 10_000
    tenants: int = 200

    @property
    def shadows(self) -> int:
        """The number of shadow pods of two devices that the share pods need."""
        return self.shares // DEVICES

    def tenant_names(self) -> list[str]:
        """tenant-000, tenant-001, ..."""
        return [f"tenant-{number:03}" for number in range(self.tenants)]


class Population:
    """Writes the objects, many of them at a time."""

    def __init__(self, client: KubeClient, size: Size) -> None:
        self._client = client
        self._size = size

    async def tenants_and_nodes(self) -> None:
        """Nodes, a pool, and a quota for each tenant."""
        await each(self._client.create, map(objects.namespace, self._size.tenant_names()))
        await self._client.create(objects.pool())
        profile = {"devices": DEVICES, "min": 0, "max": 1_000}
        quotas = [objects.quota(tenant, profile) for tenant in self._size.tenant_names()]
        await each(self._client.create, quotas)
        await each(self._client.create, (self._node(n) for n in range(self._size.nodes)))

    async def shares(self, count: int, prefix: str) -> None:
        """That many pending share pods, spread over the tenants."""
        tenants = itertools.cycle(self._size.tenant_names())
        pods = [
            _share(tenant, f"{prefix}-{number}")
            for number, tenant in zip(range(count), tenants, strict=False)
        ]
        await each(self._client.create, pods)

    async def serve_all(self) -> None:
        """Give every shadow pod a node and every share pod a device, as the scheduler, kubelets and
        node agents would."""
        shadows = (await self._client.list(SHADOW_POD)).items
        shares = (await self._client.list(POD, label_selector=f"!{LABEL_SHADOW_POD}")).items
        waiting: dict[str, list[Object]] = {}
        for share in shares:
            waiting.setdefault(share["metadata"]["namespace"], []).append(share)
        jobs = []
        for number, shadow in enumerate(shadows):
            own = waiting.get(shadow["metadata"]["namespace"], [])
            holders = [own.pop() for _ in range(min(DEVICES, len(own)))]
            jobs.append((shadow, holders, f"node-{number % self._size.nodes:04}"))
        await each(self._serve, jobs)

    async def _serve(self, job: tuple[Object, list[Object], str]) -> None:
        shadow, holders, node = job
        meta = shadow["metadata"]
        await self._bind(meta["namespace"], meta["name"], node)
        for share in holders:
            await self._bind(meta["namespace"], share["metadata"]["name"], node)
        await self._client.apply(
            _report(shadow, holders, node),
            field_manager=FIELD_MANAGER_NODEAGENT,
            subresource="status",
        )

    async def _bind(self, namespace: str, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        await self._client.request("POST", path, body=body)

    def _node(self, number: int) -> Object:
        amounts = {"nvidia.com/gpu": str(self._size.cards), "pods": "110", "cpu": "64"}
        labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": MODEL}
        labels |= {f"nvidia.com/feature.{one}": "true" for one in range(OTHER_LABELS)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"node-{number:04}", "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }


async def each(do: Callable[[T], Awaitable[Any]], items: Iterable[T]) -> None:
    """Does it for all items, many of them at a time."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> None:
        async with limit:
            await _persistently(do, item)

    await asyncio.gather(*(one(item) for item in items))


async def _persistently(do: Callable[[T], Awaitable[Any]], item: T) -> None:
    """Repeats a request, since an API server under this load is sometimes too busy to answer in
    time."""
    for _ in range(TRIES - 1):
        try:
            await do(item)
            return
        except Unavailable:
            await asyncio.sleep(1)
    await do(item)


def _share(tenant: str, name: str) -> Object:
    """A share pod as the webhook has changed it."""
    pod = objects.share_pod(tenant, name, resource=f"{tenant}.mizar.share/gpu.{DEVICES}")
    pod["metadata"].setdefault("labels", {})[LABEL_SHARE_POD] = "true"
    return pod


def _report(shadow: Object, holders: list[Object], node: str) -> Object:
    """The node agent's report of a shadow pod that serves these share pods."""
    meta, now = shadow["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    card = f"GPU-{meta['uid']}"
    devices: list[Object] = [
        {"id": f"{meta['namespace']}/{meta['name']}-{index}", "card": card, "health": "Healthy"}
        for index in range(DEVICES)
    ]
    for device, share in zip(devices, holders, strict=False):
        namespace, name = share["metadata"]["namespace"], share["metadata"]["name"]
        device["holder"] = {"namespace": namespace, "name": name, "container": "main"}
    said = {"Ready": "True", "PodInUsing": "True", "Healthy": "True", "Draining": "False"}
    conditions = [
        {"type": type, "status": status, "reason": "Bench", "lastTransitionTime": now}
        for type, status in said.items()
    ]
    return {
        "apiVersion": shadow["apiVersion"],
        "kind": shadow["kind"],
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "status": {
            "node": node,
            "cards": [{"uuid": card, "model": MODEL, "memoryMiB": CARD_MIB}],
            "devices": devices,
            "conditions": conditions,
        },
    }
