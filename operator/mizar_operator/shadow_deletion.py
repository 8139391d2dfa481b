"""Deletes an unused shadow pod: live reads confirm that it is unused, and only the very objects
that were read are deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mizar_core.names import FINALIZER_DRAIN
from mizar_core.planning.snapshot import ShadowView
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.kinds import POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator.caches import Caches
from mizar_operator.delete_guard import StillInUse, confirm_unused
from mizar_operator.shadow_disruption_budgets import DisruptionBudgets

Observe = Callable[[Object], None]
"""Puts an object that the API server has returned into a cache."""

GRACE_S = 1
"""Grace period, in seconds, of an unused shadow pod. With 0, the API server would forget the pod,
and that its cards are taken, before the kubelet has freed them."""


class ShadowDeleter:
    """Deletes shadow pods. Its methods raise StillInUse where a pod uses the shadow pod or may be
    about to, and KubeError."""

    def __init__(self, client: KubeClient, caches: Caches, budgets: DisruptionBudgets) -> None:
        self._client = client
        self._caches = caches
        self._budgets = budgets

    async def delete(self, known: ShadowView) -> None:
        """Delete the pod first, then the ShadowPod: as long as the ShadowPod exists, the operator
        continues until the cards are free."""
        confirmed = await confirm_unused(self._client, self._caches, known)
        if confirmed.pod is not None:
            await self._delete_one(self._caches.holders.observe, POD, confirmed.pod)
        if confirmed.shadow is None:
            self._caches.shadows.forget(known.name, known.namespace, known.uid)
            return
        if "deletionTimestamp" not in confirmed.shadow["metadata"]:
            await self._delete_one(self._caches.shadows.observe, SHADOW_POD, confirmed.shadow)
        if confirmed.pod is None:
            await self.remove_finalizer(known)

    async def _delete_one(self, observe: Observe, kind: Kind, obj: Object) -> None:
        meta = obj["metadata"]
        try:
            gone = await self._client.delete(
                Ref(kind, meta["name"], meta["namespace"]),
                uid=meta["uid"],
                # The check was made on the pod as it was then: it must not have got a node since,
                # nor be offered again, even if this call takes effect long after its timeout.
                resource_version=meta["resourceVersion"] if kind == POD else "",
                grace_seconds=GRACE_S if kind == POD else None,
                propagation="Background",
            )
        except NotFound:
            return
        if "deletionTimestamp" in gone.get("metadata", {}):
            observe(gone)

    async def remove_finalizer(self, known: ShadowView) -> None:
        """Remove Mizar's finalizer from an unused ShadowPod whose pod is gone."""
        confirmed = await confirm_unused(self._client, self._caches, known)
        if confirmed.pod is not None:
            raise StillInUse(known, "its pod is still there")
        if confirmed.shadow is None:
            self._caches.shadows.forget(known.name, known.namespace, known.uid)
            return
        meta = confirmed.shadow["metadata"]
        left = [one for one in meta.get("finalizers") or () if one != FINALIZER_DRAIN]
        change = {"resourceVersion": meta["resourceVersion"], "finalizers": left}
        ref = Ref(SHADOW_POD, known.name, known.namespace)
        if self._is_last(known):
            # The budget must be deleted before the ShadowPod: afterwards, nothing would request it.
            await self._budgets.drop(known.namespace)
        with suppress(NotFound):
            self._caches.shadows.observe(await self._client.patch_merge(ref, {"metadata": change}))

    def _is_last(self, going: ShadowView) -> bool:
        """Whether no other shadow pod of the namespace has a pod to protect, or may get one."""
        return not any(
            one.namespace == going.namespace
            and one.uid != going.uid
            and not (one.deleting and self._is_unprotected(one))
            for one in self._caches.shadows.values()
        )

    def _is_unprotected(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod's pod is gone or is being deleted, so that no budget can protect
        it."""
        holder = self._caches.holders.get(shadow.name, shadow.namespace)
        return holder is None or holder.view.deleting
