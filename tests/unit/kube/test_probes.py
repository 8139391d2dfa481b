"""Probes say what is wrong; every program tells its version and its process."""

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterator

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_kube import probes


async def test_probes_say_what_is_wrong() -> None:
    alive, ready = list[str](), list[str]()
    app = probes.application(probes.registry("test"), lambda: alive, lambda: ready)
    async with TestClient(TestServer(app)) as client:

        async def asked(path: str) -> tuple[int, str]:
            answer = await client.get(path)
            assert answer.content_type == "text/plain"
            return answer.status, await answer.text()

        assert await asked("/healthz") == await asked("/readyz") == (200, "ok\n")
        ready += ["pods: nothing heard for 9 s", "ending"]
        assert await asked("/healthz") == (200, "ok\n")
        assert await asked("/readyz") == (503, "pods: nothing heard for 9 s\nending\n")
        alive += ["ending", "queue: stuck"]
        assert await asked("/healthz") == (503, "ending\nqueue: stuck\n")
        said = "ending\nqueue: stuck\npods: nothing heard for 9 s\n"
        assert await asked("/readyz") == (503, said), "what must start anew is not ready"


async def test_metrics_tell_of_the_process() -> None:
    app = probes.application(probes.registry("test"), list, list)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/metrics")
        text = await answer.text()
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert 'mizar_build_info{component="test",version="' in text
    for figure in ("process_resident_memory_bytes", "python_info", "python_gc_objects_collected"):
        assert figure in text


class Slow(Collector):
    """Remembers the thread in which it was asked."""

    def collect(self) -> Iterator[Metric]:
        self.thread = threading.get_ident()
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_collectors_do_not_hold_the_loop_up() -> None:
    registry, slow = probes.registry("test"), Slow()
    registry.register(slow)
    async with TestClient(TestServer(probes.application(registry, list, list))) as client:
        await client.get("/metrics")
    assert slow.thread != threading.get_ident()


async def test_it_is_served_on_the_port() -> None:
    app = probes.application(probes.registry("test"), list, list)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with probes.serving(app, port):
        url = f"http://127.0.0.1:{port}/healthz"
        answer = await asyncio.to_thread(urllib.request.urlopen, url)
        assert answer.read() == b"ok\n"
