"""The webhook's own certificate is due while the API server is away."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from cluster.local_cluster import LocalCluster
from e2e.asking import asking
from e2e.components import SYSTEM, component_pods, container_id, kill_container
from e2e.test_cert_manager import PRESENTED
from mizar_operator.webhook.issue_certificates import SERVING_LIFE, SKEW, Bundle, fresh, from_secret
from support.kube import Kube
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
DNS_NAME = f"mizar-webhook.{SYSTEM}.svc"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
DUE_S = 40.0
"""Seconds until the certificate is due: longer than it takes until the webhook serves with it."""
NAME = "mizar-webhook"


def due_at(when: datetime) -> Bundle:
    """A bundle whose certificate is to be renewed at that time."""
    return fresh(DNS_NAME, when - (SERVING_LIFE + SKEW) * 2 / 3 + SKEW)


def stored(kube: Kube) -> Bundle:
    """The bundle in the Secret."""
    found = from_secret((kube.get("secret", NAME, SYSTEM) or {})["data"])
    assert found is not None
    return found


def served(kube: Kube) -> str:
    """The certificate with which the webhook serves, as PEM; empty while it does not."""
    (pod,) = component_pods(kube, "webhook")
    where = (f"--namespace={SYSTEM}", pod["metadata"]["name"])
    status, seen = kube.attempt("exec", *where, "--", "python3", "-c", PRESENTED)
    return "" if status else seen.strip()


def trusted(kube: Kube) -> set[str]:
    """The authorities that the API server knows, as in a Secret."""
    found = [kube.get(kind, NAME) or {} for kind in CONFIGURATIONS]
    return {hook["clientConfig"].get("caBundle", "") for one in found for hook in one["webhooks"]}


@pytest.mark.parametrize("killed", [False, True], ids=["", "and the webhook is killed"])
def test_a_certificate_that_is_due_while_the_api_server_is_away_is_renewed_afterwards(
    kube: Kube, stage: "Stage", mizar_cluster: LocalCluster, killed: bool
) -> None:
    """Share pods are accepted as soon as the API server is back, and none is refused while the
    certificate is replaced."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    due = datetime.now(UTC) + timedelta(seconds=DUE_S)
    bundle = due_at(due)
    patch = json.dumps({"data": bundle.to_secret()})
    kube.run("patch", "secret", NAME, f"--namespace={SYSTEM}", f"--patch={patch}")
    ours = bundle.certificate_pem.decode().strip()
    wait_for("the webhook to serve with it", lambda: served(kube) == ours)
    assert trusted(kube) == {bundle.to_secret()["ca.crt"]}
    (pod,) = component_pods(kube, "webhook")
    (node,) = (one for one in mizar_cluster.nodes if one.name == pod["spec"]["nodeName"])
    mizar_cluster.kill_api_server()
    try:
        if killed:
            kill_container(node, container_id(pod["status"]["containerStatuses"][0]))
        wait_for("the certificate to be due", lambda: datetime.now(UTC) > due)
    finally:
        mizar_cluster.start_api_server()
    back = time.monotonic()
    with asking(mizar_cluster, tenant) as asked:
        print(f"share pods were accepted {time.monotonic() - back:.0f} s after it was back")
        wait_for("a new certificate", lambda: stored(kube).certificate != bundle.certificate)
        now = stored(kube)
        renewed = now.certificate_pem.decode().strip()
        wait_for("the webhook to serve with it", lambda: served(kube) == renewed)
        print(f"the new certificate was there {time.monotonic() - back:.0f} s after it was back")
        before = asked.accepted
        wait_for("more to be accepted", lambda: asked.accepted >= before + 20)
    assert not asked.refused, asked.refused
    assert now.authorities == bundle.authorities
    (after,) = component_pods(kube, "webhook")
    restarts = after["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == pod["status"]["containerStatuses"][0]["restartCount"] + killed
