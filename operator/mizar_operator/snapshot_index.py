"""An index of the snapshot that a plan was made from, by the names in the plan's actions."""

from __future__ import annotations

from dataclasses import replace

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.planning.actions import CreatePod, CreateQuota, CreateShadow, EmitEvent
from mizar_core.planning.snapshot import (
    THE_QUOTA_ITSELF,
    Key,
    ShadowView,
    Snapshot,
    quota_key,
)

NAMED = 5
"""The most waiting share pods that the log line about a created shadow pod names."""


class SnapshotIndex:
    """The objects of a snapshot by (namespace, name), and those that the plan has created since."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.shadows = {one.key: one for one in snapshot.shadows}
        self.pools: dict[str, GPUPool] = {one.metadata.name: one for one in snapshot.pools}
        self.quotas: dict[Key, GPUQuota] = {quota_key(one): one for one in snapshot.quotas}

        self._waiting: dict[tuple[str, str], list[str]] = {}
        for share in snapshot.shares:
            if share.node is None:
                self._waiting.setdefault((share.namespace, share.resource), []).append(share.name)

    def waiting(self, namespace: str, resource: str) -> list[str]:
        """The names of some share pods that wait for the resource."""
        return self._waiting.get((namespace, resource), [])[:NAMED]

    def add_created(self, made: ShadowView, resource: str) -> ShadowView:
        """Add a shadow pod that has just been created, with its resource."""
        self.shadows[made.key] = replace(made, resource=resource)
        return self.shadows[made.key]

    def quota_and_devices(self, action: CreateQuota | CreateShadow | CreatePod) -> tuple[Key, int]:
        """The quota that the shadow pod counts against, and the devices of its profile; the quota
        alone where that is created."""
        if isinstance(action, CreateQuota):
            return action.quota, THE_QUOTA_ITSELF
        if isinstance(action, CreateShadow):
            return (action.shadow[0], action.quota), action.devices
        shadow = self.shadows[action.shadow]
        return shadow.quota_key, shadow.devices

    def uid_of(self, event: EmitEvent) -> str:
        """The UID of the object that the event is about; empty if that is not known."""
        return self.quota_uid(event.about) if event.kind == "GPUQuota" else event.uid

    def quota_uid(self, key: Key) -> str:
        """The quota's UID; empty if that is not known."""
        quota = self.quotas.get(key)
        return (quota.metadata.uid or "") if quota else ""

    def pool_uid(self, name: str) -> str:
        """The pool's UID; empty if that is not known."""
        pool = self.pools.get(name)
        return (pool.metadata.uid or "") if pool else ""
