"""Opens Mizar's scheduling gates of pods."""

from __future__ import annotations

from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Invalid, NotFound
from mizar_kube.kinds import POD, Object, Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)


async def open_gate(client: KubeClient, pod: Key, uid: str, gate: str) -> Object | None:
    """Remove the gate of this very pod, if it is its only one: otherwise the gates stay until the
    other programs have removed theirs. Returns the pod as it is now, also if it has other gates or
    none by now, as after an answer that was lost; None if it is gone. Raises KubeError."""
    path = "/spec/schedulingGates"
    patch: list[Object] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": [{"name": gate}]},
        {"op": "remove", "path": path},
    ]
    ref = Ref(POD, pod[1], pod[0])
    try:
        opened = await client.patch_json(ref, patch)
    except NotFound as gone:
        log.info("the gated pod has changed", gate=gate, error=gone)
        return None
    except Invalid as refused:
        found = await _find(client, ref, uid)
        # The API server or a webhook refuses to open the gate of a pod that has this one alone.
        if found is not None and _gates(found) == [gate]:
            raise
        log.info("the gated pod has changed", gate=gate, error=refused)
        return found
    log.info("gate opened", gate=gate)
    return opened


async def _find(client: KubeClient, ref: Ref, uid: str) -> Object | None:
    """The pod if it is still there, and not another one of its name."""
    try:
        pod = await client.get(ref)
    except NotFound:
        return None
    return pod if pod["metadata"]["uid"] == uid else None


def _gates(pod: Object) -> list[str]:
    return [one["name"] for one in pod["spec"].get("schedulingGates") or ()]
