"""HTTP for machines: /metrics for Prometheus, /healthz for the kubelet's probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Problems = Callable[[], Iterable[str]]
"""Why the agent is not well; nothing when it is."""


def application(registry: CollectorRegistry, problems: Problems) -> web.Application:
    """The two pages."""

    async def metrics(request: web.Request) -> web.Response:
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        found = list(problems())
        return web.Response(text="\n".join(found) or "ok", status=503 if found else 200)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    return app


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
