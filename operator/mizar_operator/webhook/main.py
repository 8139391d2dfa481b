"""mizar-webhook: puts the parts together and runs them until it is told to end."""

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
from mizar_operator.webhook.folder import Folder
from mizar_operator.webhook.keeper import Keeper
from mizar_operator.webhook.knowledge import Knowledge
from mizar_operator.webhook.metrics import Metrics
from mizar_operator.webhook.reviewer import Reviewer
from mizar_operator.webhook.server import review_app
from mizar_operator.webhook.settings import Settings
from mizar_operator.webhook.tls import ServingTLS

log = get_logger(__name__)

# Readiness fails when the copies are this old. Much later so does liveness: a start from nothing
# rarely helps against an API server that is away.
STALE_S = 180.0
STUCK_S = 900.0
# Longer than API servers keep idle connections, so that it is them who close.
KEEPALIVE_S = 120.0


class Webhook:
    """The running process."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self._settings = settings
        self._tls = ServingTLS()
        self._metrics = Metrics()
        self._metrics.expiry.set_function(self._expiry)
        self._knowledge = Knowledge(client)
        self._certificate = _certificate(settings, client, self._tls)
        self._draining = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then finish what has begun."""
        reviews = _runner(review_app(Reviewer(self._knowledge), self._metrics))
        told = probes.application(self._metrics.registry, self._stuck, self._unready)
        async with (
            probes.serving(told, self._settings.metrics_port),
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(one)
                for one in (*self._knowledge.tasks(), *self._certificate.tasks())
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
        own = "ending" if self._draining else self._certificate.problem()
        return [*([own] if own else []), *self._stale(STALE_S)]

    def _stuck(self) -> list[str]:
        return self._stale(STUCK_S) if self._knowledge.synced else []

    def _stale(self, after: float) -> list[str]:
        problems = (one.problem(after) for one in self._knowledge.informers)
        return [one for one in problems if one]

    def _expiry(self) -> float:
        return self._tls.expires.timestamp() if self._tls.expires else 0.0


def _certificate(settings: Settings, client: KubeClient, tls: ServingTLS) -> Keeper | Folder:
    if settings.certificate_dir:
        return Folder(settings.certificate_dir, tls)
    secret = Ref(SECRET, settings.secret, settings.namespace)
    return Keeper(client, secret, settings.dns_name, settings.configuration, tls)


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
    """The console script."""
    settings = load(Settings, arguments)
    logs.set_up(settings.log_level, settings.log_format)
    log.info("the webhook starts", version=version(), server=settings.dns_name)
    try:
        asyncio.run(run(settings))
    except ConfigError as error:
        log.error("there is no API server to talk to", error=error)
        return 1
    return 0
