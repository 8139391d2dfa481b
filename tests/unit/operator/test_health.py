"""Probes say what is wrong."""

from aiohttp.test_utils import TestClient, TestServer

from mizar_operator.health import application
from mizar_operator.metrics import Metrics


async def test_probes_and_metrics() -> None:
    problems = ["pods: nothing heard of the API server for 200 s"]
    app = application(lambda: [], lambda: problems, Metrics())
    async with TestClient(TestServer(app)) as client:
        alive = await client.get("/healthz")
        ready = await client.get("/readyz")
        metrics = await client.get("/metrics")
        assert (alive.status, await alive.text()) == (200, "ok\n")
        assert (ready.status, await ready.text()) == (503, problems[0] + "\n")
        assert "mizar_build_info" in await metrics.text()
