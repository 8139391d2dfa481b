"""The webhook's certificate is cert-manager's, of the version that $MIZAR_CERT_MANAGER names:
`make cert-manager`. It is no part of `make e2e`, since cert-manager has to be built first."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cluster.mizar
from cluster import Cluster, ClusterSpec, cert_manager
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from e2e.asking import asking
from e2e.components import SYSTEM, component_pods
from e2e.watching import wait_held
from support import objects
from support.kube import Kube, Object, condition
from support.waiting import wait_for

VARIABLE = "MIZAR_CERT_MANAGER"
TENANT = "team-a"
NAME = "mizar-webhook"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def values(folder: Path, source: str) -> Path:
    """The values of local clusters, with that source of certificates, as a file."""
    found: dict[str, Any] = yaml.safe_load(cluster.mizar.LOCAL_VALUES.read_text())
    found.setdefault("webhook", {})["certificates"] = {"source": source}
    file = folder / f"{source}.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


@pytest.fixture(scope="module")
def with_cert_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node with cert-manager, and Mizar, whose chart uses it from the start."""
    version = os.environ.get(VARIABLE)
    if not version:
        pytest.skip(f"${VARIABLE} names no version")
    built = cert_manager.build(version, Progress())
    up = LocalProvider().up(ClusterSpec(name=f"certs-{os.getpid()}"), Progress())
    try:
        cert_manager.start(up, built)
        cluster.mizar.install(up, Progress(), values(tmp_path_factory.mktemp("a"), "certManager"))
        kube = Kube(up)
        kube.apply(objects.namespace(TENANT))
        kube.wait_namespaces(TENANT)
        kube.apply(objects.quota(TENANT, {"devices": 2, "max": 1}))
        yield up
    finally:
        up.down()


@pytest.fixture
def kube(with_cert_manager: Cluster) -> Kube:
    """kubectl on the cluster."""
    return Kube(with_cert_manager)


def bundles(kube: Kube) -> set[str]:
    """The authorities that the API server knows for Mizar's webhooks, as in a Secret."""
    found = [kube.get(kind, NAME) or {} for kind in CONFIGURATIONS]
    return {hook["clientConfig"].get("caBundle", "") for one in found for hook in one["webhooks"]}


def secret(kube: Kube, name: str = f"{NAME}-tls") -> dict[str, str]:
    """The Secret's files; empty if there is none."""
    found = kube.get("secret", name, SYSTEM)
    return dict((found or {}).get("data", {}))


def serves(kube: Kube, certificate: str) -> bool:
    """Whether all webhooks have taken this certificate, which is as in a Secret."""
    path = ("exec", f"--namespace={SYSTEM}")
    wanted = base64.b64decode(certificate).decode().strip()
    for one in component_pods(kube, "webhook"):
        status, seen = kube.attempt(
            *path, one["metadata"]["name"], "--", "python3", "-c", PRESENTED
        )
        if status or seen.strip() not in wanted:
            return False
    return True


PRESENTED = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 9443)))"


def renew(kube: Kube, name: str) -> None:
    """Have a Certificate renewed, as `cmctl renew` does; returns when it is."""
    before = (kube.get("certificate", name, SYSTEM) or {})["status"]["revision"]
    said = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "now"}
    patch = json.dumps([{"op": "add", "path": "/status/conditions/-", "value": said}])
    where = (name, f"--namespace={SYSTEM}", "--subresource=status", "--type=json")
    kube.run("patch", "certificate", *where, f"--patch={patch}")

    def renewed() -> bool:
        found: Object = kube.get("certificate", name, SYSTEM) or {}
        return bool(
            found["status"]["revision"] > before and condition(found, "Ready")["status"] == "True"
        )

    wait_for(f"Certificate {name} to be renewed", renewed)


def test_share_pods_run_with_its_certificate(kube: Kube) -> None:
    kube.apply(objects.share_pod(TENANT, "a"))
    wait_held(kube, TENANT, "a")
    assert bundles(kube) == {secret(kube)["ca.crt"]}
    assert serves(kube, secret(kube)["tls.crt"])
    kube.delete("pod", "a", TENANT)


def test_no_share_pod_is_refused_while_certificates_are_renewed(
    kube: Kube, with_cert_manager: Cluster
) -> None:
    """First the authority's own, and then the one that it signs."""
    before = secret(kube)
    with asking(with_cert_manager, TENANT) as asked:
        for name in (f"{NAME}-authority", NAME):
            renew(kube, name)
        now = secret(kube)
        assert now["tls.crt"] != before["tls.crt"] and now["ca.crt"] != before["ca.crt"]
        wait_for("API servers to know the authority", lambda: bundles(kube) == {now["ca.crt"]})
        wait_for("the webhook to serve", lambda: serves(kube, now["tls.crt"]), timeout=240)
        accepted = asked.accepted
        wait_for("more to be accepted", lambda: asked.accepted >= accepted + 20)
    assert not asked.refused, (len(asked.refused), asked.accepted, asked.refused[0])


def test_the_source_can_be_changed_and_changed_back(
    kube: Kube, with_cert_manager: Cluster, tmp_path: Path
) -> None:
    for source in ("selfManaged", "certManager"):
        cluster.mizar.install(with_cert_manager, Progress(), values(tmp_path, source))
        kube.apply(objects.share_pod(TENANT, source.lower()))
        wait_held(kube, TENANT, source.lower())
        kube.delete("pod", source.lower(), TENANT)
        assert len(bundles(kube)) == 1
        assert (bundles(kube) == {secret(kube)["ca.crt"]}) == (source == "certManager")
