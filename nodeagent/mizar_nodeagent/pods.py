"""The pods of this node, reduced to the fields that the agent needs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_core.model_base import parse_time
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    ANNOTATION_LOW_POWER,
    ANNOTATION_SAME_CARD,
    ANNOTATION_SPOT_GRACE,
    ANNOTATION_SPOT_NOTICE,
    ANNOTATION_WITHOUT_LIMITS,
    HAMI_POD_DEVICES,
    LABEL_SHADOW_POD,
    MIRROR,
    POD_CONDITION_ACTIVE,
    POD_CONDITION_ISOLATION,
    SPOT_RESOURCE,
)
from mizar_core.pod_requests import (
    Spec,
    cards_requested,
    devices_after_init,
    devices_requested,
    spot_cards_requested,
)
from mizar_kube.client import KubeClient
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import POD, Object

Key = tuple[str, str]
"""(namespace, name) of a pod."""

_STATIC_UID = "kubernetes.io/config.hash"
"""Annotation of a static pod's object. MIRROR has the same value."""
_IS_API_SERVERS_UID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STARTING = ("", "ContainerCreating", "PodInitializing")
"""Reasons of the kubelet for a container that waits, but not because something has failed."""


@dataclass(frozen=True)
class Pod:
    """A pod of this node that is a shadow pod, or requests virtual devices, a spot card or whole
    cards, or has ResourceClaims, by which it may hold whole cards.

    `requests`: the number of devices that it requests of each of Mizar's resources; empty for a pod
    with whole cards only. `admitted`: the kubelet has admitted it, so its devices have been
    allocated. `ended`: it has Succeeded or Failed. `terminating`: it was deleted, and may run until
    `terminates_by`. `same_card`: whether each of its containers must have devices of one card only;
    None if it leaves that to the pool.
    `priority`: that of its PriorityClass. `container_ids`: (ID at the runtime, name) of each
    container. `isolation`, `active`: statuses of its conditions mizar.share/isolation-enforced and
    mizar.share/active, empty if it has none. `low_power`: it agrees to lend its cards while it is
    idle. `controller`: the kind of its controller; empty if it has none. `spot_notice`,
    `spot_grace`: seconds that it asks for when it loses a borrowed card.
    `without_limits`: names of the containers that ask for no limits. `containers`: names of its
    containers, init containers first. `init_containers`: names of those init containers that end
    before the other containers start. `hami_devices`: value of its annotation for HAMi's
    dashboards. `carve_json`, `drain`, `owner_uid`: of a shadow pod, its annotations and the UID of
    its ShadowPod. `cannot_start`: of a shadow pod, its container has never started, since the
    kubelet cannot pull its image or the like. `static_uid`: of a static pod, the UID by which the
    kubelet knows it; `static_needs`: the resources of Mizar's that its containers request, without
    those that only its init containers do.
    """

    namespace: str
    name: str
    uid: str
    shadow: bool = False
    carve_json: str = ""
    drain: str = ""
    owner_uid: str = ""
    cannot_start: bool = False
    admitted: bool = False
    ended: bool = False
    terminating: bool = False
    terminates_by: datetime | None = None
    same_card: bool | None = None
    static_uid: str = ""
    static_needs: tuple[str, ...] = ()
    priority: int = 0
    container_ids: tuple[tuple[str, str], ...] = ()
    isolation: str = ""
    active: str = ""
    requests: tuple[tuple[str, int], ...] = ()
    low_power: bool = False
    controller: str = ""
    spot_notice: float = 0.0
    spot_grace: float = 0.0
    without_limits: frozenset[str] = frozenset()
    containers: tuple[str, ...] = ()
    init_containers: frozenset[str] = frozenset()
    hami_devices: str = ""

    @property
    def uses_devices(self) -> bool:
        """Whether the pod has or may get devices of Mizar, or provides them as a shadow pod."""
        return self.shadow or bool(self.requests)

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs under which the kubelet may know the pod."""
        return frozenset(filter(None, (self.uid, self.static_uid)))

    @cached_property
    def carve(self) -> Carve:
        """How the shadow pod's cards are divided. Raises CarveRefused if the annotation is missing
        or damaged."""
        if not self.carve_json:
            raise CarveRefused(f"the shadow pod has no annotation {ANNOTATION_CARVE}")
        return Carve.from_json(self.carve_json)

    def requested(self, resource: str) -> int:
        """The number of devices of the resource that the pod requests."""
        return dict(self.requests).get(resource, 0)


def trim(obj: Object) -> Pod | None:
    """The pod, given its object from the API server; None if it neither requests cards or devices
    nor has ResourceClaims nor is a shadow pod."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    shadow = labels.get(LABEL_SHADOW_POD) == "true"
    requests = tuple((devices_requested(spec) | _spot_cards(spec)).items())
    if not (shadow or requests or cards_requested(spec) or spec.get("resourceClaims")):
        return None
    phase, static_uid = status.get("phase"), _static_uid(notes)
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        shadow=shadow,
        carve_json=notes.get(ANNOTATION_CARVE, "") if shadow else "",
        drain=notes.get(ANNOTATION_DRAIN, "") if shadow else "",
        owner_uid=_owner_uid(meta) if shadow else "",
        cannot_start=shadow and _cannot_start(status),
        # The kubelet allocates before it writes the first status.
        admitted=bool(status.get("startTime")) or phase == "Running",
        ended=phase in ("Succeeded", "Failed"),
        terminating=bool(meta.get("deletionTimestamp")),
        terminates_by=parse_time(meta["deletionTimestamp"])
        if meta.get("deletionTimestamp")
        else None,
        same_card=_true_or_false(notes.get(ANNOTATION_SAME_CARD)),
        static_uid=static_uid,
        static_needs=tuple(devices_after_init(spec)) if static_uid else (),
        priority=spec.get("priority") or 0,
        container_ids=() if shadow else tuple(_container_ids(status)),
        isolation=_condition(status, POD_CONDITION_ISOLATION),
        active=_condition(status, POD_CONDITION_ACTIVE),
        requests=requests,
        low_power=notes.get(ANNOTATION_LOW_POWER) == "true",
        controller=_controller(meta),
        spot_notice=_seconds(notes.get(ANNOTATION_SPOT_NOTICE)),
        spot_grace=_seconds(notes.get(ANNOTATION_SPOT_GRACE)),
        without_limits=frozenset(_names(notes.get(ANNOTATION_WITHOUT_LIMITS))),
        containers=() if shadow else tuple(_containers(spec)),
        init_containers=frozenset(_init_containers(spec)),
        hami_devices=notes.get(HAMI_POD_DEVICES, ""),
    )


def _static_uid(notes: Mapping[str, str]) -> str:
    """The kubelet's UID of a static pod; empty for any other pod.

    Every user can set the annotation of the UID, and could name another tenant's pod, whose
    processes would then be taken for those of his own. So it counts only beside the annotation that
    no user can add to a pod that exists, and a kubelet deletes a pod that was created with it and
    is not its own. Until that has happened, such a pod must not have a UID that the API server has
    given to another one. The kubelet's own are hashes without hyphens.
    """
    found = notes.get(_STATIC_UID, "")
    is_mirror = found == notes.get(MIRROR)
    return found if is_mirror and not _IS_API_SERVERS_UID.fullmatch(found) else ""


def _spot_cards(spec: Spec) -> dict[str, int]:
    found = spot_cards_requested(spec)
    return {SPOT_RESOURCE: found} if found else {}


def _containers(spec: Spec) -> Iterable[str]:
    for kind in ("initContainers", "containers"):
        for one in spec.get(kind) or ():
            yield one["name"]


def _init_containers(spec: Spec) -> Iterable[str]:
    found = spec.get("initContainers") or ()
    return (one["name"] for one in found if one.get("restartPolicy") != "Always")


def _true_or_false(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text or "")


def _names(text: str | None) -> Iterable[str]:
    return filter(None, (one.strip() for one in (text or "").split(",")))


def _seconds(text: str | None) -> float:
    """The text as seconds; 0 if it is no positive number. Admission refuses such a text, but not on
    pods that existed before."""
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if 0 < found < math.inf else 0.0


def _condition(status: Any, type: str) -> str:
    conditions = status.get("conditions") or ()
    return next((one["status"] for one in conditions if one["type"] == type), "")


def _container_ids(status: Any) -> Iterable[tuple[str, str]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(kind) or ():
            if identity := (one.get("containerID") or "").rpartition("//")[2]:
                yield identity, one["name"]


def _owner_uid(meta: Any) -> str:
    owners = meta.get("ownerReferences") or ()
    return next((one["uid"] for one in owners if one["kind"] == "ShadowPod"), "")


def _controller(meta: Any) -> str:
    """The kind of the pod's controller; empty if it has none. That of a static pod is its node,
    which would run the same pod again."""
    owners = meta.get("ownerReferences") or ()
    found = next((str(one["kind"]) for one in owners if one.get("controller")), "")
    return "" if found == "Node" else found


def _cannot_start(status: Any) -> bool:
    """Whether a container of a pending pod waits because something has failed."""
    if status.get("phase") != "Pending":
        return False
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    reasons = ((one.get("waiting") or {}).get("reason") or "" for one in states)
    return any(one not in _STARTING for one in reasons)


def informer(client: KubeClient, node: str) -> Informer[Pod]:
    """An informer of this node's pods; the API server filters them."""
    return Informer(client, Watched(POD, field_selector=f"spec.nodeName={node}"), trim)
