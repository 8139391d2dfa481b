"""Serves /healthz and /readyz for the kubelet's probes, and /metrics for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from mizar_kube.version import version

PAGE_EVERY_S = 0.1
"""Seconds, at least, between two pages of metrics."""

Problems = Callable[[], Iterable[str]]
"""Returns the problems, a sentence each; empty when all is well."""


class Registry(CollectorRegistry):
    """A registry with a gauge of whether the program is ready, which `application` sets whenever
    metrics are asked for."""

    def __init__(self) -> None:
        super().__init__()
        text = "Whether the program can do its work: 1 where /readyz succeeds, otherwise 0."
        self.ready = Gauge("mizar_ready", text, registry=self)


def registry(component: str) -> Registry:
    """A new registry with the metrics of every program: its version, its process, Python."""
    # Each counter and histogram would have a second series.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    found = Registry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        found.register(collector)
    built = Gauge(
        "mizar_build_info",
        "Always 1; which Mizar this is.",
        ["version", "component"],
        registry=found,
    )
    built.labels(version(), component).set(1)
    return found


class _Pages:
    """Pages of metrics, made one after the other in a thread, since some metrics read files. A page
    is begun at most every PAGE_EVERY_S seconds, and serves all requests that came until then.
    Otherwise anyone who can reach the port could occupy all threads of the program with
    requests."""

    def __init__(self, figures: CollectorRegistry) -> None:
        self._figures = figures
        self._next: asyncio.Task[bytes] | None = None
        self._turn = asyncio.Lock()
        self._begun_at = float("-inf")

    async def page(self) -> bytes:
        """A page that is begun after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._made())
        return await asyncio.shield(self._next)

    async def _made(self) -> bytes:
        async with self._turn:
            await asyncio.sleep(self._begun_at + PAGE_EVERY_S - time.monotonic())
            self._next, self._begun_at = None, time.monotonic()
            return await asyncio.to_thread(generate_latest, self._figures)


def application(figures: Registry, alive: Problems, ready: Problems) -> web.Application:
    """The HTTP application. /healthz fails with the problems of `alive`, which a restart would
    cure; /readyz, and the gauge, with these and those of `ready`."""
    pages = _Pages(figures)

    def unready() -> list[str]:
        return [*alive(), *ready()]

    async def healthz(_: web.Request) -> web.Response:
        return _answer(alive())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(unready())

    async def metrics(_: web.Request) -> web.Response:
        # Only the event loop may ask for problems, and the page is made in another thread.
        figures.ready.set(not unready())
        return web.Response(body=await pages.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


@asynccontextmanager
async def serving(app: web.Application, port: int) -> AsyncIterator[None]:
    """Serve on all addresses while the block runs."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    started = asyncio.create_task(web.TCPSite(runner, port=port).start())
    try:
        await asyncio.shield(started)
        yield
    finally:
        # A start that is cancelled half-way would leave its sockets open.
        await asyncio.wait([started])
        await runner.cleanup()


def _answer(problems: Iterable[str]) -> web.Response:
    """With problems, status 500, as Kubernetes' own components answer: for 503, kubectl prints a
    message of its own instead of the problems."""
    if found := list(dict.fromkeys(problems)):
        return web.Response(status=500, text="\n".join(found) + "\n")
    return web.Response(text="ok\n")
