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
    try:
        opened = await client.patch_json(Ref(POD, pod[1], pod[0]), patch)
    except (NotFound, Invalid) as changed:
        # The watch will bring the change, and the next plan is made from that.
        log.info("the gated pod has changed", gate=gate, error=changed)
        return None
    log.info("gate opened", gate=gate)
    return opened
