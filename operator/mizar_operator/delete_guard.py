"""The delete guard (invariant 3): before a shadow pod is deleted, a live read from the API server
must show that no pod uses it.

Caches may be behind, so only these reads decide. shadow_deletion.py does the deletion itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from mizar_core.planning.device_users import may_be_used
from mizar_core.planning.shadow_stage import never_reported
from mizar_core.planning.snapshot import ShadowView, ShareView
from mizar_kube.client import KubeClient
from mizar_kube.kinds import NODE, POD, SHADOW_POD, Object, Ref
from mizar_operator import object_views, pod_views
from mizar_operator.caches import Caches
from mizar_operator.live_objects import find, views_on
from mizar_operator.pod_views import HolderPod, SharePod


class StillInUse(Exception):
    """A pod uses the shadow pod, or may be about to. This is not a failure: try again later."""

    def __init__(self, shadow: ShadowView, why: str) -> None:
        super().__init__(f"shadow pod {shadow.namespace}/{shadow.name} is not deleted: {why}")
        self.uid = shadow.uid
        self.why = why


@dataclass(frozen=True)
class ConfirmedUnused:
    """An unused shadow pod, confirmed by live reads: ShadowPod and pod as the API server has them,
    each None if it is gone."""

    shadow: Object | None
    pod: Object | None


async def confirm_unused(client: KubeClient, caches: Caches, known: ShadowView) -> ConfirmedUnused:
    """Confirm that no pod uses the shadow pod now; returns the objects that were read. Raises
    StillInUse if a pod uses it or may be about to, and KubeError."""
    shadow, pod = await _read(client, known)
    if shadow is None and pod is None:
        return ConfirmedUnused(None, None)
    view = _view(shadow, pod, known)
    if view.on_node is None or await find(client, Ref(NODE, view.on_node)) is None:
        return ConfirmedUnused(shadow, pod)
    if not _is_out_of_use(view, known):
        raise StillInUse(known, "it has not been drained")
    others: list[ShadowView] = []
    bound = await _bound(client, known, view)
    if bound:
        others = [await _reread(client, one) for one in _beside(caches, view)]
        # Read again as the last step, so that no pod that was bound meanwhile is overlooked.
        bound = await _bound(client, known, view)
    user = may_be_used(view, others, bound)
    if user is not None:
        raise StillInUse(known, f"{user} uses it or may be about to")
    return ConfirmedUnused(shadow, pod)


async def _read(client: KubeClient, known: ShadowView) -> tuple[Object | None, Object | None]:
    """The ShadowPod and its pod; objects of the same name with another UID do not count."""
    shadow = await find(client, Ref(SHADOW_POD, known.name, known.namespace))
    if shadow is not None and shadow["metadata"]["uid"] != known.uid:
        shadow = None
    pod = await find(client, Ref(POD, known.name, known.namespace))
    holder = pod_views.pod_view(pod) if pod is not None else None
    own = isinstance(holder, HolderPod) and holder.owner_uid == known.uid
    return shadow, pod if own else None


def _view(shadow: Object | None, pod: Object | None, known: ShadowView) -> ShadowView:
    holder = pod_views.pod_view(pod) if pod is not None else None
    view = object_views.shadow_view(shadow) if shadow is not None else known
    return replace(
        view,
        resource=known.resource,
        pod=holder.view if isinstance(holder, HolderPod) else None,
    )


def _is_out_of_use(view: ShadowView, known: ShadowView) -> bool:
    """Whether its devices cannot be given to any pod any more: it is drained, or its pod ends; or
    no node agent has ever reported on it, and the planner has waited long enough for an answer to
    the drain that it knows."""
    pod = view.pod
    if pod is None or pod.ended or pod.deleting or view.lost:
        return True
    if pod.drain_asked is None:
        return False
    same = known.pod is not None and known.pod.drain_asked == pod.drain_asked
    return view.drained or (same and never_reported(view))


def _beside(caches: Caches, view: ShadowView) -> list[ShadowView]:
    """The other shadow pods on the node that offer the same resource, by the caches. A shadow pod
    that they lack, or whose resource they do not know, can only make the answer more cautious. One
    of another resource must not count: a pod may have devices of two pools, and those of the one
    pool say nothing about those that it is about to get of the other."""
    return [
        one
        for one in caches.shadows.values()
        if one.uid != view.uid
        and one.node == view.on_node
        and one.devices == view.devices
        and _resource_of(caches, one) == view.resource
    ]


def _resource_of(caches: Caches, shadow: ShadowView) -> str:
    holder = caches.holder_of(shadow)
    return holder.resource if holder is not None else shadow.resource


async def _reread(client: KubeClient, shadow: ShadowView) -> ShadowView:
    found = await find(client, Ref(SHADOW_POD, shadow.name, shadow.namespace))
    return object_views.shadow_view(found) if found is not None else replace(shadow, holders=())


async def _bound(client: KubeClient, known: ShadowView, view: ShadowView) -> list[ShareView]:
    def shares(obj: Object) -> list[ShareView]:
        pod = _readable(known, view, obj)
        demands = pod.demands if isinstance(pod, SharePod) else ()
        return [share for _, share in demands if share.resource == view.resource]

    return list(chain(*await views_on(client, str(view.on_node), shares)))


def _readable(known: ShadowView, view: ShadowView, pod: Object) -> HolderPod | SharePod | None:
    try:
        return pod_views.pod_view(pod)
    except Exception as error:
        if view.resource not in str(pod.get("spec")):
            return None
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        raise StillInUse(known, f"pod {name} asks for its resource and cannot be read") from error
