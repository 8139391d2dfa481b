"""Watches GPUPools: which cards are shared, and how."""

from __future__ import annotations

from typing import Any

import kopf

from mizar_core.models import GPUPool
from mizar_core.names import GROUP, VERSION
from mizar_kube.kinds import GPU_POOL
from mizar_operator.caches import NO_POOL, Caches
from mizar_operator.handlers import Add, Memo


@kopf.on.event(GROUP, VERSION, GPU_POOL.plural)
async def gpupool(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    """A pool was created, changed or deleted."""
    memo.caches.pools.tell(event["type"], dict(event["object"]))


def follow(caches: Caches, add: Add) -> None:
    """Request a plan for the pool, and for what belongs to no pool: quotas that name a missing one,
    and pods that request resources of a prefix that no pool has any more."""

    def changed(old: GPUPool | None, new: GPUPool | None) -> None:
        for pool in (old, new):
            if pool is not None:
                add(pool.spec.resource_prefix)
        if old is None or new is None or old.spec.resource_prefix != new.spec.resource_prefix:
            add(NO_POOL)

    caches.pools.on_change(changed)
