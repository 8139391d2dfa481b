"""Keeps the webhook's self-signed certificate in a Secret, and has API servers trust it.
issue_certificates.py makes it, and decides when it is renewed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import MUTATING_WEBHOOKS, SECRET, VALIDATING_WEBHOOKS, Kind, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set
from mizar_operator.webhook.cache import ASK_AGAIN_S
from mizar_operator.webhook.issue_certificates import Bundle, from_secret, renewed
from mizar_operator.webhook.serving_tls import ServingTLS

log = get_logger(__name__)

CHECK_EVERY_S = 60.0
"""Seconds between two checks of the certificate when nothing changes."""
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 60.0
"""Seconds between attempts that fail, and between renewals that follow one another: at first, and
at most."""
CONFIGURATIONS = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
"""The kinds of objects that say which authorities API servers trust for a webhook."""
HELM = "meta.helm.sh/"
"""Prefix of the annotations by which helm knows the objects of its releases."""


class SelfSigned:
    """Makes and renews the certificate bundle in a Secret, serves with it, and writes its
    authorities into both webhook configurations.

    All replicas do so at the same time; the Secret's resourceVersion decides which one is first.
    `now`: the time of day.
    """

    def __init__(
        self,
        client: KubeClient,
        secret: Ref,
        dns_name: str,
        configuration: str,
        tls: ServingTLS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._secret = secret
        self._dns_name = dns_name
        self._configuration = configuration
        self._tls = tls
        self._now = now
        self._changed = asyncio.Event()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        self._renewals = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        self._bundle: Bundle | None = None
        self._trusted = False
        self._failure: KubeError | None = None

    def problem(self) -> str | None:
        """Why API servers cannot connect to the webhook; None if they can. A replica whose
        certificate still serves stays ready when it cannot be renewed: the others are no better."""
        if found := self._lacking():
            return f"{found}: {self._failure}" if self._failure else found
        return None

    def _lacking(self) -> str | None:
        if self._bundle is None:
            return "no certificate yet"
        if not self._trusted:
            return "the webhook configurations do not trust this certificate yet"
        if self._bundle.certificate.not_valid_after_utc <= self._now():
            return "the certificate has expired"
        return None

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks that must run: watches that notice changes, and the reconciling itself."""
        kinds = [(SECRET, self._secret.namespace, self._secret.name)]
        kinds += [(kind, None, self._configuration) for kind in CONFIGURATIONS]
        return [self.run(), *(self._watch(*one) for one in kinds)]

    async def _watch(self, kind: Kind, namespace: str | None, name: str) -> None:
        watched = Watched(kind, namespace, field_selector=f"metadata.name={name}")
        timing = Timing(max_delay=ASK_AGAIN_S)
        informer: Informer[str] = Informer(self._client, watched, _version, timing)
        informer.on_change(lambda old, new: self._changed.set())
        await informer.run()

    async def run(self) -> None:
        """Reconcile whenever something changes, and every CHECK_EVERY_S seconds, for ever."""
        while True:
            self._changed.clear()
            try:
                renewed_now = await self.reconcile()
                self._failure = None
                self._backoff.reset()
            except Conflict as conflict:
                log.info("another replica changed the certificate", error=conflict)
            except KubeError as error:
                log.warning("the certificate could not be renewed or trusted", error=error)
                self._failure = error
                await wait_until_set(self._changed, within=self._backoff.next())
            else:
                await self._rest(renewed_now)

    async def _rest(self, renewed_now: bool) -> None:
        """Wait for the next change. Repeated renewals back off, since replicas whose clocks are
        months apart would otherwise undo each other's work without a pause."""
        if renewed_now:
            await asyncio.sleep(self._renewals.next())
        if not await wait_until_set(self._changed, within=CHECK_EVERY_S):
            self._renewals.reset()

    async def reconcile(self) -> bool:
        """Renew the bundle if it is due, have API servers trust the current one, and serve with it.
        Returns whether it was renewed. Raises KubeError: if API servers cannot be made to trust the
        bundle now, the webhook serves on with the former one, which they still trust."""
        self._bundle, renewed_now = await self._current()
        for kind in CONFIGURATIONS:
            await self._trust(Ref(kind, self._configuration), self._bundle)
        self._trusted = True
        if self._tls.use(self._bundle.certificate_pem, self._bundle.key_pem):
            log.info("certificate in use", expires=self._tls.expires)
        return renewed_now

    async def _current(self) -> tuple[Bundle, bool]:
        """The bundle that all replicas use now, and whether this one has just made it."""
        try:
            found = await self._client.get(self._secret)
        except NotFound:
            found = None
        bundle = from_secret((found or {}).get("data") or {})
        new = renewed(bundle, self._dns_name, self._now())
        if new is None:
            assert bundle is not None, "missing parts of the certificate bundle are made again"
            return bundle, False
        await self._write(found, new)
        log.info("certificate renewed", **_about(self._secret))
        return new, True

    async def _write(self, found: Object | None, bundle: Bundle) -> None:
        """Write the bundle into the Secret. Raises Conflict if another replica was faster, whose
        bundle counts."""
        if found is not None:
            await self._client.replace(found | {"data": bundle.to_secret()})
            return
        secret = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": await self._metadata(),
            "data": bundle.to_secret(),
        }
        try:
            await self._client.create(secret)
        except AlreadyExists as error:
            raise Conflict(str(error), status=error.status) from error

    async def _metadata(self) -> Object:
        """Metadata of a new Secret, with the marks of the release that the webhook's configurations
        have: helm takes over no object without them. Raises KubeError if the configuration cannot
        be read, for example when cert-manager's certificate replaces this one: the Secret that helm
        deletes then must not come back."""
        ref = Ref(MUTATING_WEBHOOKS, self._configuration)
        meta = (await self._client.get(ref))["metadata"]
        notes = (meta.get("annotations") or {}).items()
        return {
            "name": self._secret.name,
            "namespace": self._secret.namespace,
            "labels": meta.get("labels") or {},
            "annotations": {key: value for key, value in notes if key.startswith(HELM)},
        }

    async def _trust(self, ref: Ref, bundle: Bundle) -> None:
        found = await self._client.get(ref)
        if patch := trust_patch(found, bundle.ca_pem):
            await self._client.patch_json(ref, patch)
            log.info("certificate trusted", **_about(ref))


def trust_patch(configuration: Object, ca_pem: bytes) -> list[Object]:
    """The JSON patch that makes all webhooks of a configuration trust the authorities; empty if
    they do already. The patch fails when the configuration has changed since it was read."""
    wanted = base64.b64encode(ca_pem).decode()
    changes = [
        {"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": wanted}
        for at, webhook in enumerate(configuration.get("webhooks") or [])
        if webhook["clientConfig"].get("caBundle") != wanted
    ]
    version = configuration["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [test, *changes] if changes else []


def _about(ref: Ref) -> dict[str, str]:
    where = {"namespace": ref.namespace} if ref.namespace else {}
    return {"kind": ref.kind.name, "name": ref.name, **where}


def _version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])
