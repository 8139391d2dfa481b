"""Kopf is the operator's only watch of Mizar's own kinds.

An operator runs in this process, against a real API server, without the periodic list that could
hide a missing handler.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster import Cluster
from mizar_core.names import LABEL_SHARE_POD
from mizar_kube import credentials
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.http_session import session
from mizar_kube.kinds import (
    GPU_POOL,
    GPU_QUOTA,
    NAMESPACE,
    POD,
    SHADOW_POD,
    Kind,
    Object,
    Ref,
    ref_of,
)
from mizar_operator import kopf_store
from mizar_operator.main import Operator
from mizar_operator.settings import Settings
from support import objects
from support.kube import Kube

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
NEVER_S = 3600.0
PATIENCE_S = 120.0
STILL_S = 2.0
HEADERS = ("Content-Type", "Accept")


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """An API server that knows the custom resources."""
    kube = Kube(cluster)
    kube.apply(ROOT / "crds")
    kube.run("wait", "--for=condition=Established", "--timeout=60s", f"--filename={ROOT / 'crds'}")
    yield cluster.kubeconfig


@dataclass
class Setup:
    """The API server and the operator on it, with a tenant of its own."""

    client: KubeClient
    operator: Operator
    tenant: str = field(default_factory=lambda: f"watch-{uuid4().hex[:5]}")

    async def create(self, obj: Object) -> Object:
        return await self.client.create(obj)

    async def tenancy(self, least: int) -> None:
        """A pool and a quota of the tenant's. No node has the pool's label: no pod will ever use a
        shadow pod, so none has to be drained."""
        await self.create(objects.namespace(self.tenant))
        await self.create(objects.pool(self.tenant, nodeSelector={"nowhere": "true"}))
        profile = {"devices": 2, "min": least, "max": 2}
        await self.create(objects.quota(self.tenant, profile, pool=self.tenant))

    async def shadows(self) -> list[Object]:
        return (await self.client.list(SHADOW_POD, self.tenant)).items

    async def settled(self) -> None:
        """Wait until the operator has nothing left to write: the answer to a write of its own tells
        it of changes too."""
        before: list[Object] = []

        async def is_still() -> bool:
            nonlocal before
            await asyncio.sleep(STILL_S)
            quota = await self.find(GPU_QUOTA, "gpus")
            pods = (await self.client.list(POD, self.tenant)).items
            before, now = [quota or {}, *pods, *await self.shadows()], before
            return now == before and bool(pods) and "status" in before[-1]

        await until("the operator to be done", is_still)

    async def find(self, kind: Kind, name: str) -> Object | None:
        namespace = self.tenant if kind.namespaced else None
        try:
            return await self.client.get(Ref(kind, name, namespace))
        except NotFound:
            return None

    async def clear(self) -> None:
        for shadow in await self.shadows():
            await self.let_go(shadow["metadata"]["name"])
        for ref in (Ref(NAMESPACE, self.tenant), Ref(GPU_POOL, self.tenant)):
            with suppress(NotFound):
                await self.client.delete(ref)

    async def let_go(self, name: str) -> None:
        """Make a ShadowPod vanish at once, without waiting for its finalizer."""
        ref = Ref(SHADOW_POD, name, self.tenant)
        with suppress(NotFound):
            await self.client.patch_merge(ref, {"metadata": {"finalizers": None}})
            await self.client.delete(ref)


Embedded = Callable[[], AbstractAsyncContextManager[Setup]]


async def eventually(what: str, true: Callable[[], object]) -> None:
    """Wait for a condition in this process."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}") from None


async def until(what: str, probe: Callable[[], Awaitable[object]]) -> None:
    """Wait for a condition at the API server."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await probe():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}") from None


@asynccontextmanager
async def running(
    own: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, period: float = NEVER_S
) -> AsyncIterator[Setup]:
    """An operator that leads, with a kubeconfig of its own; it must end without an error."""
    pace = kopf_store.Pace(period)
    monkeypatch.setattr("mizar_operator.main.Pace", lambda *_, **__: pace)
    settings = Settings(leader_election=False, resync=NEVER_S)
    async with (
        await KubeClient.connect(own) as operators,
        await KubeClient.connect(kubeconfig) as client,
    ):
        operator, stop = Operator(operators, settings), asyncio.Event()
        task = asyncio.create_task(operator.run(stop))
        setup = Setup(client, operator)
        try:
            await eventually("the first lists", lambda: operator.caches.synced or task.done())
            yield setup
        finally:
            stop.set()
            await task
            await setup.clear()


@pytest.fixture
def embedded(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Embedded:
    """Runs an operator in this process. The fixture is not asynchronous: its end would run in a
    task that began after Kopf, and Kopf cancels such tasks when it ends."""
    return partial(running, kubeconfig, kubeconfig, monkeypatch)


async def test_a_pool_that_is_created_is_planned(embedded: Embedded) -> None:
    async with embedded() as setup:
        await setup.create(objects.pool(setup.tenant))

        async def told() -> bool:
            pool = await setup.find(GPU_POOL, setup.tenant)
            return bool(pool and pool.get("status", {}).get("conditions"))

        await until("the pool's conditions", told)


async def test_a_quota_that_is_created_changed_and_deleted_is_planned(embedded: Embedded) -> None:
    async with embedded() as setup:
        await setup.tenancy(least=1)

        async def count(wanted: int) -> bool:
            return len(await setup.shadows()) == wanted

        await until("a shadow pod to be kept warm", lambda: count(1))
        ref = Ref(GPU_QUOTA, "gpus", setup.tenant)
        profile = {"devices": 2, "min": 2, "max": 2}
        await setup.client.patch_merge(ref, {"spec": {"profiles": [profile]}})
        await until("a second one", lambda: count(2))
        await setup.client.delete(ref)
        # Without a node no pod ever used them: they are deleted undrained.
        await until("both to go", lambda: count(0))


async def test_a_deleted_shadow_pod_is_let_go_and_replaced(
    embedded: Embedded,
) -> None:
    async with embedded() as setup:
        await setup.tenancy(least=1)
        await until("a shadow pod", setup.shadows)
        await setup.settled()
        (shadow,) = await setup.shadows()
        name = shadow["metadata"]["name"]
        await setup.client.delete(Ref(SHADOW_POD, name, setup.tenant))

        async def gone() -> bool:
            return await setup.find(SHADOW_POD, name) is None

        await until("the operator to take its finalizer off", gone)

        async def replaced() -> bool:
            return name not in {one["metadata"]["name"] for one in await setup.shadows()} and bool(
                await setup.shadows()
            )

        await until("another one in its place", replaced)


async def test_objects_of_ours_and_others_bear_no_trace_of_kopf(embedded: Embedded) -> None:
    """Share pods and nodes get no label, annotation or finalizer at all."""
    async with embedded() as setup:
        await setup.tenancy(least=1)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{setup.tenant}"}}
        share = objects.share_pod(setup.tenant, "share", f"{setup.tenant}.mizar.share/gpu.2")
        share["metadata"]["labels"] = {LABEL_SHARE_POD: "true"}  # as the webhook does
        created = [await setup.create(one) for one in (node, share)]
        try:
            await until("a shadow pod", setup.shadows)
            await setup.settled()
            (shadow,) = await setup.shadows()
            pool = await setup.find(GPU_POOL, setup.tenant)
            quota = await setup.find(GPU_QUOTA, "gpus")
            after = [await setup.client.get(ref_of(one)) for one in created]
        finally:
            await setup.client.delete(ref_of(node))
        assert pool is not None
        assert quota is not None
        assert "kopf" not in json.dumps([shadow, pool, quota, *after])
        assert [_marks(one) for one in after] == [_marks(one) for one in created]


def _marks(obj: Object) -> set[str]:
    """Mizar's labels, annotations and finalizers of an object."""
    found = (obj["metadata"].get(one, ()) for one in ("labels", "annotations", "finalizers"))
    return {key for keys in found for key in keys if "mizar" in key}


class Proxy:
    """Between operator and API server. `cut()` breaks the watches of shadow pods; the next ones
    hear nothing until `answer` brings them a last event and ends them.

    In a thread and an event loop of its own: when Kopf ends, it cancels the tasks of its loop.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._deaf, self._answered = asyncio.Event(), asyncio.Event()
        self._event: Object = {}
        self.answers = 0

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._deaf.set)

    def answer(self, event: Object) -> None:
        self._event = event
        self._loop.call_soon_threadsafe(self._answered.set)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address to use in place of the API server's."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
            yield str(server.make_url("")).rstrip("/")
            asyncio.run_coroutine_threadsafe(self._stop(server), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _start(self) -> TestServer:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        configuration = await credentials.configuration(self._kubeconfig)
        self._server, self._session = configuration.host, session(configuration)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=1)
        return server

    async def _stop(self, server: TestServer) -> None:
        await self._session.close()
        await server.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_watch = "watch" in request.query and request.path.endswith("/shadowpods")
        if is_watch and self._deaf.is_set():
            await self._answered.wait()
            self._deaf.clear()
            self.answers += 1
            return web.json_response(self._event)
        return await self._forward(request, is_watch)

    async def _forward(self, request: web.Request, is_watch: bool) -> web.StreamResponse:
        wanted = {key: request.headers[key] for key in HEADERS if key in request.headers}
        url, body = f"{self._server}{request.path_qs}", await request.read() or None
        async with self._session.request(request.method, url, data=body, headers=wanted) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            pump = asyncio.create_task(_pump(answer, response))
            cut = asyncio.create_task(self._deaf.wait() if is_watch else asyncio.Event().wait())
            try:
                await asyncio.wait({pump, cut}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (pump, cut):
                    task.cancel()
                await asyncio.gather(pump, cut, return_exceptions=True)
        return response


async def _pump(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    with suppress(aiohttp.ClientError, ConnectionError):
        async for chunk in answer.content.iter_any():
            await response.write(chunk)


async def test_a_deletion_that_a_broken_watch_hid_is_found(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch breaks, the ShadowPod vanishes, and the versions in between are forgotten."""
    proxy = Proxy(kubeconfig)
    with proxy.serving() as url:
        through = _kubeconfig(url, tmp_path)
        async with running(through, kubeconfig, monkeypatch, period=1) as setup:
            await setup.tenancy(least=1)
            await until("a shadow pod", setup.shadows)
            (shadow,) = await setup.shadows()
            name, uid = shadow["metadata"]["name"], shadow["metadata"]["uid"]
            known = setup.operator.caches.shadows

            def knows() -> bool:
                """The one in its place has the same name where the quota's status, which counts
                them, was not written yet."""
                found = known.get(name, setup.tenant)
                return found is not None and found.uid == uid

            await eventually("the operator to know it", knows)
            proxy.cut()
            await setup.let_go(name)

            async def is_gone() -> bool:
                return uid not in {one["metadata"]["uid"] for one in await setup.shadows()}

            await until("the ShadowPod to be gone", is_gone)
            proxy.answer({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
            await eventually("a list", lambda: not knows())
            await until("one in its place", setup.shadows)


async def test_a_watch_that_fails_ends_the_process(kubeconfig: Path, tmp_path: Path) -> None:
    """With exit code 1, so that it is started again."""
    proxy = Proxy(kubeconfig)
    with proxy.serving() as url:
        proxy.cut()
        proxy.answer({"type": "ERROR", "object": {"kind": "Status", "code": 500}})
        flags = (
            f"--kubeconfig={_kubeconfig(url, tmp_path)}",
            "--metrics-port=0",
            "--no-leader-election",
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mizar_operator.main", *flags, stderr=asyncio.subprocess.PIPE
        )
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 1, log.decode()
        assert "Error in the watch-stream" in log.decode()
    assert proxy.answers == 1


def _kubeconfig(url: str, folder: Path) -> Path:
    """A kubeconfig for an API server that asks for no proof."""
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "current-context": "proxy",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    return path
