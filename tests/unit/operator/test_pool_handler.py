"""Which plans a change of a pool requests."""

from __future__ import annotations

from typing import Any, cast

from mizar_kube.client import KubeClient
from mizar_kube.kinds import Object
from mizar_operator.caches import NO_POOL, Caches
from mizar_operator.handlers import gpupool


def _pool(version: int, **spec: Any) -> Object:
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": "pool", "uid": "u", "resourceVersion": str(version)},
        "spec": {"profiles": [{"devices": 2, "cards": 1}], **spec},
    }


def test_what_belongs_to_no_pool_is_planned_when_pools_or_their_prefixes_change() -> None:
    caches, asked = Caches(cast(KubeClient, None)), list[str]()
    gpupool.follow(caches, asked.append)

    def after(kind: str, pool: Object) -> set[str]:
        asked.clear()
        caches.pools.tell(kind, pool)
        return set(asked)

    assert after("ADDED", _pool(1)) == {"mizar.share", NO_POOL}
    assert after("MODIFIED", _pool(2, idleTimeoutSeconds=7)) == {"mizar.share"}
    moved = _pool(3, resourcePrefix="other.example")
    assert after("MODIFIED", moved) == {"mizar.share", "other.example", NO_POOL}
    assert after("DELETED", moved) == {"other.example", NO_POOL}
