"""Watches GPUQuotas: how many shadow pods a tenant may have of a pool, and how many are kept warm.

The deletion of a quota waits for nothing. The shadow pods that it leaves are deleted when no pod
uses them: see `advance` in mizar_core/planning/lifecycle.py.
"""

from __future__ import annotations

from typing import Any

import kopf

from mizar_core.models import GPUQuota
from mizar_core.names import GROUP, VERSION
from mizar_kube.kinds import GPU_QUOTA
from mizar_operator.caches import Caches
from mizar_operator.handlers import Add, Memo


@kopf.on.event(GROUP, VERSION, GPU_QUOTA.plural)
async def gpuquota(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    """A quota was created, changed or deleted."""
    memo.caches.quotas.tell(event["type"], dict(event["object"]))


def follow(caches: Caches, add: Add) -> None:
    """Request a plan for the quota's pool: shadow pods are kept warm, created for share pods that
    wait, or drained where the quota allows fewer. A quota that moved to another pool concerns
    both."""

    def changed(old: GPUQuota | None, new: GPUQuota | None) -> None:
        for quota in (old, new):
            if quota is not None:
                add(caches.key_of_pool(quota.spec.pool))

    caches.quotas.on_change(changed)
