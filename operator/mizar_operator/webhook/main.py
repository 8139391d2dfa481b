"""The entry point of mizar-webhook: makes the parts and runs them until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from aiohttp import web

from mizar_kube import logs, probes
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError
from mizar_kube.kinds import SECRET, Ref
from mizar_kube.logs import get_logger
from mizar_kube.settings import load
from mizar_kube.version import version
from mizar_operator.webhook.cache import Cache
from mizar_operator.webhook.metrics import Metrics
from mizar_operator.webhook.mounted_certificate import CertificateFiles
from mizar_operator.webhook.reviewer import Reviewer
from mizar_operator.webhook.self_signed_certificate import SelfSigned
from mizar_operator.webhook.server import review_app
from mizar_operator.webhook.serving_tls import ServingTLS
from mizar_operator.webhook.settings import Settings

log = get_logger(__name__)

STALE_S = 180.0
"""Age of the cache, in seconds, from which readiness fails."""
KEEPALIVE_S = 120.0
"""Seconds that idle connections are kept: longer than API servers keep them, so that the client
closes first."""


class Webhook:
    """The webhook's process: serves reviews and metrics, and keeps cache and certificate
    current."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self._settings = settings
        self._tls = ServingTLS()
        self._metrics = Metrics()
        self._metrics.expiry.set_function(self._expiry)
        self._metrics.lifetime.set_function(lambda: self._tls.lifetime.total_seconds())
        self._cache = Cache(client)
        self._certificate = _certificate(settings, client, self._tls)
        self._draining = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish the reviews that have begun."""
        reviewer = Reviewer(
            self._cache,
            self._settings.spot_settings,
            self._settings.resource_names,
            gates=self._settings.gate_preemption,
            scale_up_delay=self._settings.scale_up_delay,
            strict_kills_root_only=self._settings.strict_kills_root_only,
        )
        reviews = _runner(review_app(reviewer, self._metrics, lambda: self._draining))
        told = probes.application(self._metrics.registry, self._stuck, self._unready)
        async with (
            probes.serving(told, self._settings.metrics_port),
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(one) for one in (*self._cache.tasks(), *self._certificate.tasks())
            ]
            await self._serve(reviews)
            await stop.wait()
            self._draining = True
            await asyncio.sleep(self._settings.drain_seconds)
            await reviews.cleanup()
            for task in tasks:
                task.cancel()

    async def _serve(self, reviews: web.AppRunner) -> None:
        await reviews.setup()
        await web.TCPSite(reviews, port=self._settings.port, ssl_context=self._tls.context).start()

    def _unready(self) -> list[str]:
        own = "the webhook is shutting down" if self._draining else self._certificate.problem()
        stale = (one.problem(STALE_S) for one in self._cache.informers)
        return [*([own] if own else []), *(one for one in stale if one)]

    def _stuck(self) -> list[str]:
        """The problems that a restart would solve. An unreachable API server is not one: a restart
        would only lose the cache."""
        stuck = (one.stands_still() for one in self._cache.informers)
        return [one for one in stuck if one]

    def _expiry(self) -> float:
        return self._tls.expires.timestamp() if self._tls.expires else 0.0


def _certificate(
    settings: Settings, client: KubeClient, tls: ServingTLS
) -> SelfSigned | CertificateFiles:
    if settings.certificate_dir:
        return CertificateFiles(settings.certificate_dir, tls)
    secret = Ref(SECRET, settings.secret, settings.namespace)
    return SelfSigned(client, secret, settings.dns_name, settings.configuration, tls)


def _runner(app: web.Application) -> web.AppRunner:
    return web.AppRunner(app, access_log=None, keepalive_timeout=KEEPALIVE_S, shutdown_timeout=5)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await KubeClient.connect(settings.kubeconfig) as client:
        await Webhook(settings, client).run(stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `mizar-webhook`; returns the exit code."""
    settings = load(Settings, arguments)
    logs.set_up(settings.log_level, settings.log_format)
    log.info("the webhook starts", version=version(), server=settings.dns_name)
    try:
        asyncio.run(run(settings))
    except ConfigError as error:
        log.error("no API server can be reached", error=error)
        return 1
    return 0
