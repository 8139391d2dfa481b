"""A release of the chart of which only the webhook runs, or the operator too, and what becomes of
objects that its users send; the node agent has no nodes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster import Cluster
from cluster.binaries.progress import Progress
from cluster.images import OPERATOR, ensure_images
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, POD, Ref
from support import objects
from support.kube import Kube, Object
from support.waiting import wait_for

CHART = Path(__file__).resolve().parents[2] / "charts" / "mizar"
RELEASE = f"admission-{os.getpid()}"
SYSTEM = f"{RELEASE}-system"
TENANT, OTHER = f"{RELEASE}-a", f"{RELEASE}-b"
VALUES: Object = {
    "defaultPool": {"create": False},
    "webhook": {"drainSeconds": 0, "resourceNames": ["nvidia.com/vgpu", "example.com/gpumem"]},
    "nodeagent": {"nodeSelector": {"mizar.share/nowhere": "true"}},
    "uninstall": {"check": False},
}


@contextmanager
def released(cluster: Cluster, *, operator: bool = False) -> Iterator[Kube]:
    """A cluster with the chart installed, a pool, and two namespaces of which one has a quota.
    `operator`: whether that runs too."""
    kube = Kube(cluster)
    cluster.load_image(ensure_images(Progress(), [OPERATOR])[OPERATOR])
    crds = f"--filename={CHART / 'crds'}"
    kube.run("apply", "--server-side", "--force-conflicts", crds)
    kube.run("wait", "--for=condition=Established", "--timeout=60s", crds)
    install(cluster, operator=operator)
    try:
        if not operator:  # which is ready only once the webhook is reached
            wait_until_asked(kube)
        kube.apply(objects.namespace(TENANT), objects.namespace(OTHER), objects.pool(RELEASE))
        kube.wait_namespaces(TENANT, OTHER)
        profiles = [{"devices": size, "max": 1} for size in (2, 4)]
        kube.apply(objects.quota(TENANT, *profiles, pool=RELEASE))
        yield kube
    finally:
        cluster.helm("uninstall", RELEASE, f"--namespace={SYSTEM}", check=False)
        kube.run("delete", "gpupools", RELEASE, "--ignore-not-found")
        names = (TENANT, OTHER, SYSTEM)
        # Another module may begin with the same names.
        kube.run("delete", "namespace", *names, "--ignore-not-found", "--timeout=280s")


ENDPOINTS_WITHIN_S = 420.0
"""After each failure, as while the API server is away, Kubernetes' controller of EndpointSlices
waits twice as long before it tries again, up to 1,000 seconds."""


def install(cluster: Cluster, *, operator: bool = False, **nodeagent: Any) -> None:
    """Install the chart, or upgrade it. `nodeagent`: values of that section."""
    values = VALUES | {"operator": {"replicas": int(operator)}}
    values["nodeagent"] = {**VALUES["nodeagent"], **nodeagent}
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(CHART), f"--namespace={SYSTEM}"),
        *("--create-namespace", "--skip-crds", "--wait", "--timeout=280s"),
        *(f"--values={CHART / 'values-local.yaml'}", "--values=-"),
        input=yaml.safe_dump(values),
    )


def wait_until_asked(kube: Kube) -> None:
    """Wait until the API server reaches the webhook: a pod that is ready is reached only once every
    node's service rules name it. After an installation, the operator's readiness includes this; it
    does not where no operator runs, or if all of the webhook's pods ended while one did."""
    pool = json.dumps(objects.pool(RELEASE))

    def is_asked() -> bool:
        _, said = kube.attempt("create", "--dry-run=server", "--filename=-", input=pool)
        assert "failed calling webhook" not in said, said
        return True

    wait_for("the webhook behind its service", is_asked, ENDPOINTS_WITHIN_S)


def dry_run(kube: Kube, obj: Object, *flags: str) -> Object:
    """The object as it would be stored."""
    arguments = ("create", "--dry-run=server", "--output=json", "--filename=-", *flags)
    return dict(json.loads(kube.run(*arguments, input=json.dumps(obj))))


def refusal(kube: Kube, obj: Object, *flags: str) -> str:
    """Why the object is refused."""
    arguments = ("create", "--dry-run=server", "--filename=-", *flags)
    status, said = kube.attempt(*arguments, input=json.dumps(obj))
    assert status != 0, f"accepted: {said}"
    return said


class Agent:
    """A client with the token of the node agent on a node, and nothing else."""

    def __init__(self, kube: Kube, cluster: Cluster, node: str, folder: Path) -> None:
        account = (f"{RELEASE}-nodeagent", f"--namespace={SYSTEM}")
        bound = ("--bound-object-kind=Node", f"--bound-object-name={node}")
        token = kube.run("create", "token", *account, *bound).strip()
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        path = folder / f"kubeconfig-{node}"
        path.write_text(yaml.safe_dump(config))
        self._kube, self._path, self._config = kube, path, f"--kubeconfig={path}"

    def patch(self, node: str, patch: Object) -> tuple[int, str]:
        """Merge into the node's status, as the agent does it: kubectl would read the node first,
        which the agent may not."""
        return self._merge(Ref(NODE, node), patch)

    def patch_pod(self, pod: Object, patch: Object) -> tuple[int, str]:
        """Merge into the pod's status, as the agent does it."""
        meta = pod["metadata"]
        return self._merge(Ref(POD, meta["name"], meta["namespace"]), patch)

    def _merge(self, ref: Ref, patch: Object) -> tuple[int, str]:
        async def merge() -> None:
            async with await KubeClient.connect(self._path) as client:
                await client.patch_merge(ref, patch, subresource="status")

        return _attempted(merge())

    def apply_status(self, pod: Object, status: Object) -> tuple[int, str]:
        """Apply fields of a pod's status, as the agent does it."""
        meta = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": status}

        async def apply() -> None:
            async with await KubeClient.connect(self._path) as client:
                await client.apply(body, field_manager="mizar-nodeagent", subresource="status")

        return _attempted(apply())

    def write(self, shadow: Object) -> tuple[int, str]:
        """Apply a ShadowPod's status."""
        how = ("--server-side", "--subresource=status", "--field-manager=mizar-nodeagent")
        body = json.dumps(shadow)
        flags = ("--force-conflicts", "--filename=-", self._config)
        return self._kube.attempt("apply", *how, *flags, input=body)


def _attempted(job: Coroutine[Any, Any, None]) -> tuple[int, str]:
    try:
        asyncio.run(job)
    except KubeError as refused:
        return 1, str(refused)
    return 0, ""
