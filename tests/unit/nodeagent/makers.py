"""Objects that the tests of the node agent are made of."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from mizar_core.carve import Carve
from mizar_core.models import Isolation
from mizar_core.names import ANNOTATION_CARVE, ANNOTATION_DRAIN, LABEL_SHADOW_POD
from mizar_nodeagent.cards import Card
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod

GIB = 1 << 30
RESOURCE = "team-a.mizar.share/gpu.2"
SHADOW = ("team-a", "shadow-2-aaaaa")
CARD = "GPU-00000000-0000-0000-0000-000000000001"

# A share pod with a container that runs.
UID = "12345678-1234-1234-1234-123456789abc"
CONTAINER_ID = "ab" * 32
CGROUP = f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n"
OWNER = Owner("team-a", "share", UID, "main")


def new_slots(folder: Path) -> Slots:
    """Slots below the folder, none yet. Where the shim belongs there are a few bytes of text."""
    shim = folder / "libmizar.so"
    shim.write_bytes(b"the shim")
    slots = Slots(folder / "slots", shim_install.install(shim, folder))
    slots.load(0.0)
    return slots


def carve(**changes: Any) -> Carve:
    """A carve of two devices over one card of team-a."""
    given: dict[str, Any] = {
        "resource": RESOURCE,
        "devices": 2,
        "cards": 1,
        "pool": "default",
        "quota": "gpus",
        "isolation": Isolation(),
    }
    return Carve(**{**given, **changes})


def card(number: int = 1, problem: str = "") -> Card:
    uuid = f"GPU-00000000-0000-0000-0000-{number:012d}"
    return Card(uuid, 16 * GIB, "NVIDIA A100-SXM4-40GB", driver="580.65.06", problem=problem)


def cards(*numbers: int) -> dict[str, Card]:
    return {one.uuid: one for one in map(card, numbers or (1, 2, 3, 4))}


def shadow(name: str = SHADOW[1], namespace: str = SHADOW[0], **changes: Any) -> Pod:
    """A shadow pod that runs."""
    how = changes.pop("carve", carve())
    return replace(
        Pod(
            namespace=namespace,
            name=name,
            uid=f"uid-{name}",
            shadow=True,
            carve_json=how.to_json(),
            owner_uid=f"owner-{name}",
            admitted=True,
        ),
        **changes,
    )


def share(name: str = "share", namespace: str = "team-a", **changes: Any) -> Pod:
    """A share pod that asks for one device and has got it."""
    return replace(
        Pod(
            namespace=namespace,
            name=name,
            uid=f"uid-{name}",
            admitted=True,
            requests=((RESOURCE, 1),),
        ),
        **changes,
    )


def card_claim(name: str = SHADOW[1], *uuids: str, namespace: str = "team-a") -> Claim:
    """The claim of a shadow pod that holds cards."""
    ids = frozenset(uuids or (CARD,))
    return Claim(namespace, name, "pause", "nvidia.com/gpu", ids)


def share_claim(*ids: str, pod: str = "share", resource: str = RESOURCE) -> Claim:
    """The claim of a share pod that holds devices."""
    return Claim("team-a", pod, "main", resource, frozenset(ids))


def snapshot(
    now: float,
    pods: Iterable[Pod] | None = (),
    claims: Iterable[Claim] = (),
    kubelet: dict[str, set[str]] | None = None,
    **changes: Any,
) -> NodeSnapshot:
    """A snapshot in which everything was asked for at `now`, long after the pods were seen."""
    known = None if pods is None else {pod.key: pod for pod in pods}
    healthy = {key: frozenset(ids) for key, ids in (kubelet or {}).items()}
    given: dict[str, Any] = {
        "now": now,
        "pods": known,
        "seen_at": {pod.uid: 0.0 for pod in (known or {}).values()},
        "claims": Claims(tuple(claims), now),
        "cards": cards(),
        "kubelet": healthy,
        "kubelet_at": now,
    }
    return NodeSnapshot(**{**given, **changes})


def device(index: int, key: Key = SHADOW) -> str:
    return f"{key[0]}/{key[1]}-{index}"


def one_container(folder: Path, isolation: Isolation) -> tuple[Any, Any]:
    """An agent's state and slots while that pod runs, with slot `s` in the folder."""
    pod = share(uid=UID, container_ids=((CONTAINER_ID, "main"),))
    carving = SimpleNamespace(carve=carve(isolation=isolation))
    state = SimpleNamespace(
        snapshot=snapshot(1.0, [pod], claims=[share_claim(device(0))]),
        carving_of=lambda device: carving,
        carvings={SHADOW: carving},
    )
    slot = Slot("s", folder, RESOURCE, frozenset({device(0)}), 0.0, OWNER)
    return state, SimpleNamespace(all=lambda: [slot])


def shadow_object(
    name: str = SHADOW[1], namespace: str = "team-a", drain: str = "", **carving: Any
) -> dict[str, Any]:
    """A shadow pod as the API server has it."""
    annotations = {ANNOTATION_CARVE: carve(**carving).to_json()}
    if drain:
        annotations[ANNOTATION_DRAIN] = drain
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "labels": {LABEL_SHADOW_POD: "true"},
            "annotations": annotations,
            "ownerReferences": [{"kind": "ShadowPod", "name": name, "uid": f"owner-{name}"}],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "pause", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }


def share_object(
    name: str = "share",
    namespace: str = "team-a",
    resource: str = RESOURCE,
    count: int = 1,
    admitted: bool = True,
) -> dict[str, Any]:
    """A share pod as the API server has it."""
    status = {"phase": "Pending"}
    if admitted:
        status["startTime"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main", "resources": {"limits": {resource: str(count)}}}],
        },
        "status": status,
    }


@contextmanager
def full_disk() -> Iterator[None]:
    """Files get no blocks: the disk is full."""
    error = OSError(errno.ENOSPC, "No space left on device")
    with patch.object(os, "posix_fallocate", side_effect=error):
        yield
