"""Opens Mizar's scheduling gates of pods."""

from __future__ import annotations

from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Invalid, NotFound
from mizar_kube.kinds import POD, Object, Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)


async def open_gate(client: KubeClient, pod: Key, uid: str, gate: str) -> Object | None:
    """Remove the gate of this very pod. Gates of other programs stay until these remove them.
    Returns the pod; None if it is gone, has other gates, or has none. Raises other KubeErrors."""
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
        if await _is_gated(client, ref, uid, gate):
            raise
        # The watch will bring the change, and the next plan is made from that.
        log.info("the gated pod has changed", gate=gate, error=refused)
        return None
    log.info("gate opened", gate=gate)
    return opened


async def _is_gated(client: KubeClient, ref: Ref, uid: str, gate: str) -> bool:
    """Whether the pod is still there with this gate alone, so that the API server or a webhook
    refused to open it."""
    try:
        pod = await client.get(ref)
    except NotFound:
        return False
    gates = [one["name"] for one in pod["spec"].get("schedulingGates") or ()]
    return bool(pod["metadata"]["uid"] == uid and gates == [gate])
