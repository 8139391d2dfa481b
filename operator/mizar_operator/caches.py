"""What the operator knows of the cluster: one informer per kind, and whose turn it is when one of
their objects changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import tenant_of
from mizar_core.planning.snapshot import NodeView, ShadowView
from mizar_kube.client import KubeClient
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, POD, SHADOW_POD
from mizar_operator import views
from mizar_operator.views import HolderPod, SharePod

T = TypeVar("T")

NO_POOL = ""
"""The key of what belongs to a pool that does not exist."""


class Caches:
    """The informers. A key is the resource prefix of a pool: pools that share one share their
    share pods too, so they are planned together, by one worker."""

    def __init__(self, client: KubeClient) -> None:
        self.pools: Informer[GPUPool] = Informer(client, Watched(GPU_POOL), views.pool_view)
        self.quotas: Informer[GPUQuota] = Informer(client, Watched(GPU_QUOTA), views.quota_view)
        self.shadows: Informer[ShadowView] = Informer(
            client, Watched(SHADOW_POD), views.shadow_view
        )
        self.pods: Informer[HolderPod | SharePod] = Informer(client, Watched(POD), views.pod_view)
        self.nodes: Informer[NodeView] = Informer(client, Watched(NODE), views.node_view)

    def __iter__(self) -> Iterator[Informer[object]]:
        found: list[Informer[object]] = [
            self.pools,  # type: ignore[list-item]
            self.quotas,  # type: ignore[list-item]
            self.shadows,  # type: ignore[list-item]
            self.pods,  # type: ignore[list-item]
            self.nodes,  # type: ignore[list-item]
        ]
        return iter(found)

    def runners(self) -> list[Callable[[], Awaitable[None]]]:
        """What has to run for the copies to stay current."""
        return [one.run for one in self]

    def problems(self) -> list[str]:
        """What a health probe should fail for."""
        return [problem for one in self if (problem := one.problem()) is not None]

    def keys(self) -> set[str]:
        """All keys there is work for."""
        return {one.spec.resource_prefix for one in self.pools.values()} | {NO_POOL}

    def key_of_pool(self, name: str) -> str:
        """The key under which a pool of that name is planned."""
        pool = self.pools.get(name)
        return NO_POOL if pool is None else pool.spec.resource_prefix

    def keys_of_prefix(self, prefix: str) -> set[str]:
        """The keys whose share pods ask for resources of this prefix, a tenant's included."""
        return {
            key
            for key in self.keys()
            if key and (key == prefix or tenant_of(prefix, key) is not None)
        }


def on_change(caches: Caches, add: Callable[[str], None]) -> None:
    """Call `add(key)` whenever there is something to plan for the key."""

    def tell(keys: Iterable[str]) -> None:
        for key in keys:
            add(key)

    def of_pods(value: HolderPod | SharePod) -> set[str]:
        if isinstance(value, HolderPod):
            return {caches.key_of_pool(value.pool)}
        prefixes = {prefix for prefix, _ in value.demands}
        return {key for prefix in prefixes for key in caches.keys_of_prefix(prefix)}

    _listen(caches.pools, lambda pool: {pool.spec.resource_prefix, NO_POOL}, tell)
    _listen(caches.quotas, lambda quota: {caches.key_of_pool(quota.spec.pool)}, tell)
    _listen(caches.shadows, lambda shadow: {caches.key_of_pool(shadow.pool)}, tell)
    _listen(caches.pods, of_pods, tell)
    _listen(caches.nodes, lambda node: caches.keys(), tell)


def _listen(
    informer: Informer[T], keys: Callable[[T], Iterable[str]], tell: Callable[[Iterable[str]], None]
) -> None:
    def changed(old: T | None, new: T | None) -> None:
        for value in (old, new):
            if value is not None:
                tell(keys(value))

    informer.on_change(changed)
