"""Finds objects that exist but cannot be read, as a newer version of Mizar or a mistake may leave
them. Everything that depends on one is excluded from plans, rather than treated as an orphan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mizar_core.names import (
    ANNOTATION_SEQUENCE,
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_QUOTA,
    parse_resource,
)
from mizar_core.planning.exclusion import PartName
from mizar_core.planning.snapshot import Key, ShadowView, ShareView, Snapshot
from mizar_operator.caches import Caches
from mizar_operator.reconcile_state import Excluded


class Unreadable(Exception):
    """An object cannot be read; the message says which."""

    def __init__(self, kind: str, key: Key) -> None:
        super().__init__(f"{kind} {'/'.join(part for part in key if part)} cannot be read")


def shadows(caches: Caches) -> Iterator[ShadowView]:
    """The views of ShadowPods that cannot be read, by their labels, so that they still count
    against their quota. ShadowPods without the label of their profile are left out."""
    for (namespace, name), meta in caches.shadows.unreadable.items():
        labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        devices, sequence = labels.get(LABEL_PROFILE, ""), notes.get(ANNOTATION_SEQUENCE, "")
        if devices.isdigit():
            yield ShadowView(
                namespace=namespace,
                name=name,
                uid=meta.get("uid", ""),
                pool=labels.get(LABEL_POOL, ""),
                quota=labels.get(LABEL_QUOTA, ""),
                quota_uid=_quota_uid(meta),
                resource="",
                devices=int(devices),
                cards=_cards(caches, labels.get(LABEL_POOL, ""), int(devices)),
                sequence=int(sequence) if sequence.isdigit() else 0,
            )


def excluded(caches: Caches, snapshot: Snapshot) -> Excluded:
    """The parts of the snapshot to exclude from the plan, since they depend on unreadable
    objects."""
    found: dict[PartName, Any] = {}
    for shadow in snapshot.shadows:
        if (reason := _of_shadow(caches, shadow)) is not None:
            found[PartName("ShadowPod", shadow.key)] = shadow, reason
    quotas = {namespace: (namespace, name) for namespace, name in caches.quotas.unreadable}
    for share in snapshot.shares:
        if share.node is not None:
            continue
        if (quota := quotas.get(share.namespace)) is not None:
            why = Unreadable("GPUQuota", quota)
            found[PartName("Pod", share.key, share.resource)] = share, why
        elif caches.pools.unreadable and not _has_pool(caches, share):
            why = Unreadable("GPUPool", min(caches.pools.unreadable))
            found[PartName("Pod", share.key, share.resource)] = share, why
    return found


def _has_pool(caches: Caches, share: ShareView) -> bool:
    """Whether a pool that can be read offers what the share pod requests."""
    parsed = parse_resource(share.resource)
    return parsed is not None and bool(caches.keys_of_prefix(parsed.prefix))


def _of_shadow(caches: Caches, shadow: ShadowView) -> Unreadable | None:
    if shadow.key in caches.shadows.unreadable:
        return Unreadable("ShadowPod", shadow.key)
    if shadow.key in caches.holders.unreadable:
        return Unreadable("Pod", shadow.key)
    if shadow.quota_key in caches.quotas.unreadable:
        return Unreadable("GPUQuota", shadow.quota_key)
    return None


def _cards(caches: Caches, pool: str, devices: int) -> int:
    known = caches.pools.get(pool)
    profile = known.spec.profile(devices) if known else None
    return profile.cards if profile else 1


def _quota_uid(meta: dict[str, Any]) -> str:
    owners = meta.get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one["kind"] == "GPUQuota"), "")
