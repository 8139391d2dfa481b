"""What the container runtime receives, asked of it over CRI."""

import json
from typing import TYPE_CHECKING

import grpc
import pytest

from cluster import Cluster, crio, node_config
from e2e.components import container_id, uses_crio
from e2e.watching import ready_shadows, wait_held
from support.kube import Kube
from support.objects import share_pod

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ANNOTATION = "mizar.k8s.io/container-devices-from.main"


def container_status(socket: str, identity: str) -> bytes:
    """The raw ContainerStatusResponse of CRI v1; strings in it are plain UTF-8.

    Field 1 of the request is the container's ID (k8s.io/cri-api, runtime/v1/api.proto).
    """
    request = b"\x0a" + bytes([len(identity)]) + identity.encode()
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/ContainerStatus",
            request_serializer=lambda raw: raw,
            response_deserializer=lambda raw: raw,
        )
        return bytes(call(request, timeout=60))


def test_annotation_as_the_runtime_receives_it(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Allocate's annotation reaches CRI in the form that other programs expect."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    (shadow,) = ready_shadows(kube, tenant)
    (device,) = wait_held(kube, tenant, "a")
    pod = kube.get("pod", "a", tenant)
    assert pod is not None
    identity = container_id(pod["status"]["containerStatuses"][0])
    (node,) = (one for one in mizar_cluster.nodes if one.name == pod["spec"]["nodeName"])

    socket = crio.SOCKET if uses_crio(node) else node_config.CONTAINERD_SOCKET
    answer = container_status(str(node.path(socket)), identity)

    name = shadow["metadata"]["name"]
    want = {f"_/{name}/main": {"*": [device.removeprefix(f"{tenant}/")]}}
    key = answer.index(ANNOTATION.encode())
    value = answer[answer.index(b"{", key) :]
    assert json.JSONDecoder().raw_decode(value.decode(errors="ignore"))[0] == want
