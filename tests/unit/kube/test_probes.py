"""Probes say what is wrong; every program tells its version and its process."""

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterator

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_kube import probes
from support.waiting import PATIENCE_S, until


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
        assert await asked("/readyz") == (500, "pods: nothing heard for 9 s\nending\n")
        alive += ["ending", "queue: stuck"]
        assert await asked("/healthz") == (500, "ending\nqueue: stuck\n")
        said = "ending\nqueue: stuck\npods: nothing heard for 9 s\n"
        assert await asked("/readyz") == (500, said), "what must start anew is not ready"


async def test_a_gauge_says_whether_it_is_ready() -> None:
    alive, ready = list[str](), list[str]()
    app = probes.application(probes.registry("test"), lambda: alive, lambda: ready)
    async with TestClient(TestServer(app)) as client:

        async def gauge() -> str:
            text = await (await client.get("/metrics")).text()
            (found,) = (line for line in text.splitlines() if line.startswith("mizar_ready "))
            return found.split()[1]

        assert await gauge() == "1.0"
        ready.append("pods: nothing heard for 9 s")
        assert await gauge() == "0.0"
        alive.append("queue: stuck")
        ready.clear()
        assert await gauge() == "0.0"
        alive.clear()
        assert await gauge() == "1.0"


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


class Counting(Collector):
    """Answers once it `may`, and counts how often it was asked, and by how many at once."""

    def __init__(self) -> None:
        self.asked, self.now, self.most = 0, 0, 0
        self.may = threading.Event()
        self.may.set()

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.may.wait(PATIENCE_S)
        self.now -= 1
        yield GaugeMetricFamily("asked", "Asked.", value=self.asked)


async def test_whoever_asks_for_metrics_often_takes_one_thread() -> None:
    registry, counting = probes.registry("test"), Counting()
    registry.register(counting)
    counting.may.clear()
    before, come = counting.asked, list[str]()
    app = probes.application(registry, list, list)

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        come.append(request.path)
        return await handler(request)

    app.middlewares.append(count)
    async with TestClient(TestServer(app)) as client:

        async def ask() -> str:
            return await (await client.get("/metrics")).text()

        first = asyncio.create_task(ask())
        await until(lambda: counting.now)
        others = [asyncio.create_task(ask()) for _ in range(50)]
        await until(lambda: len(come) == 1 + len(others))
        counting.may.set()
        pages = await asyncio.gather(*others)
        # Those who asked while a page was being made get the next one, all the same.
        assert f"asked {float(before + 1)}" in await first
        assert {f"asked {float(before + 2)}" in page for page in pages} == {True}
        assert (counting.asked - before, counting.most) == (2, 1)


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
