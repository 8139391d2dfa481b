"""HTTP for machines: /metrics for Prometheus, /healthz and /readyz for the kubelet's probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Problems = Callable[[], Iterable[str]]
"""What is wrong; nothing when all is well."""


def application(
    registry: CollectorRegistry, unwell: Problems, unready: Problems
) -> web.Application:
    """/healthz fails with `unwell`, /readyz with `unready` as well."""

    async def metrics(request: web.Request) -> web.Response:
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        return _told([*unwell()])

    async def readyz(request: web.Request) -> web.Response:
        return _told([*unwell(), *unready()])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _told(problems: list[str]) -> web.Response:
    return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)


@asynccontextmanager
async def serving(app: web.Application, port: int) -> AsyncIterator[None]:
    """Serve on all addresses while the block runs."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()
