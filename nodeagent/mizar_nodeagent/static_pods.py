"""Tells static pods that the kubelet has started without the devices that they request.

A kubelet runs a static pod from a manifest on its node, past admission and scheduler. It starts the
pod without a card if it knows no resource of the name in the manifest, which nothing else reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mizar_core.names import EventReason
from mizar_kube.kinds import POD
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.shadow_events import ShadowEvent

SURE_S: Final = 5.0
"""Seconds between two answers of the kubelet that both name no device of the pod. The first may be
from just before the pod was admitted."""
MESSAGE: Final = (
    "the kubelet has started it without a device of {}: the scheduler and admission see nothing of "
    "a static pod. Write this very name into its manifest, and have the node offer a device before "
    "the pod starts (profiles[].min of the GPUQuota), or use a DaemonSet instead"
)


class StaticPods:
    """Emits an event on each static pod that runs without its devices, once."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def events(self, snapshot: NodeSnapshot) -> Iterable[ShadowEvent]:
        """The events to emit after a plan of this snapshot."""
        lacking = {
            pod.uid: (pod, resource)
            for pod in (snapshot.pods or {}).values()
            if (resource := _lacked(pod, snapshot))
        }
        asked = snapshot.claims.asked_at
        self._since = {uid: self._since.get(uid, asked) for uid in lacking}
        self._told &= lacking.keys()
        for uid, (pod, resource) in lacking.items():
            if asked - self._since[uid] >= SURE_S and uid not in self._told:
                self._told.add(uid)
                yield ShadowEvent(
                    pod.key,
                    uid,
                    EventReason.STARTED_WITHOUT_DEVICE,
                    MESSAGE.format(resource),
                    warning=True,
                    kind=POD,
                )


def _lacked(pod: Pod, snapshot: NodeSnapshot) -> str:
    """A resource of which the static pod has no device although it was admitted; empty if there is
    none."""
    if pod.ended or not pod.admitted:
        return ""
    lacked = (one for one in pod.static_needs if not snapshot.claims_of(pod, one))
    return min(lacked, default="")
