"""Replicas agree on one certificate, and the webhook configurations always trust it."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from mizar_kube.kinds import MUTATING_WEBHOOKS, SECRET, VALIDATING_WEBHOOKS, Ref
from mizar_operator.webhook.issue_certificates import (
    CA_LIFE,
    SERVING_LIFE,
    SKEW,
    Bundle,
    from_secret,
)
from mizar_operator.webhook.self_signed_certificate import SelfSigned, trust_patch
from mizar_operator.webhook.serving_tls import ServingTLS
from stateful.memory_api import MemoryApi, Write
from support import virtual_time
from support.waiting import until
from unit.kube.fake_api import FakeApi, serving
from unit.webhook.objects_api import Object, Objects

SECRET_PATH = "/api/v1/namespaces/mizar-system/secrets/w"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = [
    f"{ADMISSION}/mutatingwebhookconfigurations/w",
    f"{ADMISSION}/validatingwebhookconfigurations/w",
]
START = datetime(2026, 1, 1, tzinfo=UTC)


class Replica:
    """A keeper with a clock and a TLS context of its own."""

    def __init__(self, client: KubeClient) -> None:
        self.now = START
        self.tls = ServingTLS()
        ref = Ref(SECRET, "w", "mizar-system")
        dns_name = "w.mizar-system.svc"
        self.self_signed = SelfSigned(client, ref, dns_name, "w", self.tls, lambda: self.now)


def installed() -> Objects:
    """What the chart leaves behind: a Secret without data and configurations without trust."""
    objects = Objects()
    objects.put(SECRET_PATH, {"apiVersion": "v1", "kind": "Secret", "metadata": named("w")})
    for path in CONFIGURATIONS:
        webhooks = [{"name": one, "clientConfig": {"service": {}}} for one in "ab"]
        objects.put(path, {"metadata": {"name": "w"}, "webhooks": webhooks})
    return objects


def named(name: str) -> Object:
    return {"name": name, "namespace": "mizar-system"}


@asynccontextmanager
async def replicas(objects: Objects) -> AsyncIterator[tuple[Replica, Replica]]:
    async with serving(FakeApi(others=objects)) as client:
        yield Replica(client), Replica(client)


def trusted(objects: Objects) -> set[bytes]:
    return {
        base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        for path in CONFIGURATIONS
        for webhook in objects.stored[path]["webhooks"]
    }


def shown(replica: Replica) -> bytes:
    """The certificate with which the replica serves, as PEM."""
    assert replica.self_signed._bundle is not None
    return replica.self_signed._bundle.certificate_pem


async def test_the_first_makes_everything() -> None:
    objects = installed()
    async with replicas(objects) as (one, _):
        assert one.self_signed.problem() == "no certificate yet"
        await one.self_signed.reconcile()
        assert one.self_signed.problem() is None
        bundle = from_secret(objects.stored[SECRET_PATH]["data"])
        assert bundle is not None
        assert trusted(objects) == {bundle.ca_pem}
        assert one.tls.expires == START + SERVING_LIFE
        assert one.tls.lifetime == SKEW + SERVING_LIFE


async def test_the_second_uses_what_the_first_has_made() -> None:
    objects = installed()
    async with replicas(objects) as (one, two):
        await one.self_signed.reconcile()
        objects.writes.clear()
        await two.self_signed.reconcile()
        await one.self_signed.reconcile()
        assert objects.writes == []
        assert two.tls.expires == one.tls.expires


async def test_of_two_at_the_same_time_one_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = installed()
    async with replicas(objects) as (one, two):
        read = await one.self_signed._client.get(one.self_signed._secret)
        await two.self_signed.reconcile()
        made = objects.stored[SECRET_PATH]["data"]

        async def stale(ref: Ref) -> Object:
            return read

        with monkeypatch.context() as patched:
            patched.setattr(one.self_signed._client, "get", stale)
            with pytest.raises(Conflict):
                await one.self_signed.reconcile()
        await one.self_signed.reconcile()
        assert objects.stored[SECRET_PATH]["data"] == made


async def test_without_a_secret_one_is_made() -> None:
    objects = installed()
    del objects.stored[SECRET_PATH]
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
    assert from_secret(objects.stored[SECRET_PATH]["data"])


async def test_a_secret_that_is_made_anew_is_the_releases() -> None:
    """Helm refuses to install or upgrade over an object that lacks these marks."""
    objects = installed()
    del objects.stored[SECRET_PATH]
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    notes = {"meta.helm.sh/release-name": "mizar", "meta.helm.sh/release-namespace": "system"}
    others = {"argocd.argoproj.io/tracking-id": "of the configuration alone"}
    objects.stored[CONFIGURATIONS[0]]["metadata"] |= {
        "labels": labels,
        "annotations": notes | others,
    }
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
    meta = objects.stored[SECRET_PATH]["metadata"]
    assert (meta["labels"], meta["annotations"]) == (labels, notes)


async def test_a_replica_that_may_not_read_the_webhook_configurations_makes_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upgrade to cert-manager takes this right from the webhook, and then deletes the Secret,
    while the old pods still run."""
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        del objects.stored[SECRET_PATH]
        read = KubeClient.get

        async def refused(client: KubeClient, ref: Ref, **more: Any) -> Object:
            if ref.kind is MUTATING_WEBHOOKS:
                raise Forbidden("no right", status=403)
            return await read(client, ref, **more)

        monkeypatch.setattr(KubeClient, "get", refused)
        with pytest.raises(Forbidden):
            await one.self_signed.reconcile()
        assert SECRET_PATH not in objects.stored
        assert one.self_signed.problem() is None


async def test_a_secret_that_is_deleted_brings_a_certificate_of_a_new_authority() -> None:
    objects = installed()
    async with replicas(objects) as (one, two):
        for replica in (one, two):
            await replica.self_signed.reconcile()
        (old,) = trusted(objects)
        del objects.stored[SECRET_PATH]
        for replica in (one, two):
            await replica.self_signed.reconcile()
        bundle = from_secret(objects.stored[SECRET_PATH]["data"])
        assert bundle is not None
        assert trusted(objects) == {bundle.ca_pem}
        assert old not in bundle.ca_pem
        for replica in (one, two):
            assert shown(replica) == bundle.certificate_pem


async def test_a_certificate_serves_until_the_authority_of_the_next_one_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server ends just after it has stored a certificate of a new authority: once it is
    back, it still trusts the old one only."""
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        expires = one.tls.expires
        del objects.stored[SECRET_PATH]
        one.now += timedelta(days=1)

        async def away(client: KubeClient, ref: Ref, patch: object) -> None:
            raise Unavailable("the API server is away")

        with monkeypatch.context() as patched:
            patched.setattr(KubeClient, "patch_json", away)
            with pytest.raises(Unavailable):
                await one.self_signed.reconcile()
        assert one.tls.expires == expires
        assert one.self_signed.problem() is None
        await one.self_signed.reconcile()
        assert one.tls.expires == one.now + SERVING_LIFE


async def test_of_two_that_make_the_secret_one_reads_what_the_other_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = installed()
    del objects.stored[SECRET_PATH]
    async with replicas(objects) as (one, two):
        read = KubeClient.get

        async def late(client: KubeClient, ref: Ref, **more: Any) -> Object:
            """Nothing was there when this was asked, and the other's Secret comes next."""
            monkeypatch.setattr(KubeClient, "get", read)
            await two.self_signed.reconcile()
            raise NotFound("no secret", status=404)

        monkeypatch.setattr(KubeClient, "get", late)
        running = asyncio.create_task(one.self_signed.run())
        await until(lambda: one.self_signed.problem() is None)
        running.cancel()
        assert shown(one) == shown(two)


class Refusing:
    """An API server on which there is no Secret and none may be made."""

    def __init__(self) -> None:
        self.tries = 0
        self.error: KubeError = Forbidden("secrets is forbidden: cannot create", status=403)

    async def get(self, ref: Ref, **_: Any) -> Object:
        if ref.kind is MUTATING_WEBHOOKS:
            return {"metadata": {"name": ref.name}}
        raise NotFound("no secret", status=404)

    async def create(self, obj: Object, **_: Any) -> Object:
        self.tries += 1
        raise self.error


def test_a_refused_secret_is_tried_again_ever_more_seldom_and_readiness_says_why() -> None:
    api, times = Refusing(), list[float]()

    async def an_hour() -> None:
        one = Replica(cast(KubeClient, api))
        running = asyncio.create_task(one.self_signed.run())
        for _ in range(2):
            await asyncio.sleep(1800)
            times.append(api.tries)
        assert one.self_signed.problem() == (
            "no certificate yet: secrets is forbidden: cannot create"
        )
        running.cancel()

    virtual_time.run(an_hour())
    assert times[0] < 80
    assert times[1] > times[0], "it never gives up"
    assert times[1] - times[0] <= 60


async def test_a_replica_that_serves_stays_ready_without_the_secret_until_its_certificate_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        running = asyncio.create_task(one.self_signed.run())
        tries = []

        async def away(client: KubeClient, ref: Ref, **more: Any) -> Object:
            tries.append(ref)
            raise Unavailable("no answer")

        monkeypatch.setattr(KubeClient, "get", away)
        await until(lambda: tries)
        assert one.self_signed.problem() is None
        one.now = START + SERVING_LIFE
        assert one.self_signed.problem() == "the certificate has expired: no answer"
        running.cancel()


async def test_a_secret_that_somebody_broke_is_mended() -> None:
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        broken = objects.stored[SECRET_PATH]
        objects.put(SECRET_PATH, broken | {"data": broken["data"] | {"tls.key": "AAAA"}})
        await one.self_signed.reconcile()
        bundle = from_secret(objects.stored[SECRET_PATH]["data"])
        assert bundle is not None
        assert trusted(objects) == {bundle.ca_pem}


async def test_a_certificate_made_by_hand_that_is_for_no_name_is_replaced() -> None:
    """Made with `openssl x509 -req -CA ca.crt -CAkey ca.key`, which adds no alternative names."""
    objects = installed()
    async with replicas(objects) as (one, two):
        await one.self_signed.reconcile()
        bundle = from_secret(objects.stored[SECRET_PATH]["data"])
        assert bundle is not None
        by_hand = replace(bundle, certificate=nameless(bundle))
        objects.put(SECRET_PATH, objects.stored[SECRET_PATH] | {"data": by_hand.to_secret()})
        await two.self_signed.reconcile()
        await one.self_signed.reconcile()
        for replica in (one, two):
            assert shown(replica) != by_hand.certificate_pem
            assert replica.self_signed.problem() is None
        assert trusted(objects) == {bundle.ca_pem}


def nameless(bundle: Bundle) -> x509.Certificate:
    """A certificate for the bundle's key, of its authority, without alternative names."""
    return (
        x509.CertificateBuilder()
        .subject_name(bundle.certificate.subject)
        .issuer_name(bundle.authorities[0].subject)
        .public_key(bundle.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(START + SERVING_LIFE)
        .sign(bundle.ca_key, SHA256())
    )


async def test_a_configuration_that_lost_its_trust_gets_it_back() -> None:
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        right = trusted(objects)
        objects.put(CONFIGURATIONS[0], installed().stored[CONFIGURATIONS[0]])
        assert trusted(objects) != right
        await one.self_signed.reconcile()
        assert trusted(objects) == right


async def test_a_new_authority_is_trusted_before_it_signs() -> None:
    objects = installed()
    async with replicas(objects) as (one, _):
        await one.self_signed.reconcile()
        one.now = START + CA_LIFE * 0.7
        await one.self_signed.reconcile()
        bundle = from_secret(objects.stored[SECRET_PATH]["data"])
        assert bundle is not None
        assert len(bundle.authorities) == 2
        assert trusted(objects) == {bundle.ca_pem}


def test_replicas_whose_clocks_are_months_apart_renew_ever_more_seldom() -> None:
    """Each replica finds the renewal that the other has made."""
    api, renewals = MemoryApi(), list[Ref]()
    api.put({"apiVersion": "v1", "kind": "Secret", "metadata": named("w")})
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "w"}}
        api.put({**head, "webhooks": []})

    async def an_hour() -> None:
        one, two = (Replica(cast(KubeClient, api)) for _ in range(2))
        two.now = START + SERVING_LIFE

        def written(write: Write) -> None:
            renewals.append(write[1])
            assert len(renewals) < 1000
            for replica in (one, two):
                replica.self_signed._changed.set()

        api.before_write = written
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each.self_signed.run()) for each in (one, two)]
            await asyncio.sleep(3600)
            for task in running:
                task.cancel()

    virtual_time.run(an_hour())
    assert 2 < len(renewals) < 250


def test_the_patch_changes_only_what_is_wrong_and_only_what_was_read() -> None:
    right = base64.b64encode(b"ca").decode()
    webhooks = [{"clientConfig": {"caBundle": bundle}} for bundle in (right, "wrong")]
    configuration = {"metadata": {"resourceVersion": "7"}, "webhooks": webhooks}
    assert trust_patch(configuration, b"ca") == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": right},
    ]
    webhooks.pop()
    assert trust_patch(configuration, b"ca") == []
    assert trust_patch({"metadata": {"resourceVersion": "7"}}, b"ca") == []
