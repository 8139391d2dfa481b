"""Liveness, readiness and metrics over HTTP.

Kopf's own endpoint proves only that it answers; here a probe fails when an informer hears nothing
or a key of the queue is not being worked off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from mizar_operator.metrics import Metrics

Problems = Callable[[], list[str]]


def application(alive: Problems, ready: Problems, metrics: Metrics) -> web.Application:
    """Serves /healthz (what a restart would cure), /readyz and /metrics."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(alive())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready())

    async def show(_: web.Request) -> web.Response:
        text = metrics.text()
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show)]
    )
    return app


@asynccontextmanager
async def serving(app: web.Application, port: int) -> AsyncIterator[int]:
    """Serve on all addresses; gives the port, which matters where `port` is 0."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answer(problems: list[str]) -> web.Response:
    if problems:
        return web.Response(status=503, text="\n".join(problems) + "\n")
    return web.Response(text="ok\n")
