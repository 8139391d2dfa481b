"""An API server for the node agent: the pods of one node, the statuses of ShadowPods and of the
node, events, and the ResourceSlices of NVIDIA's DRA driver."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from mizar_core.names import LABEL_NODE
from mizar_kube.client import KubeClient
from support.api_configuration import plain

Object = dict[str, Any]


class Watches:
    """The changes of one kind's objects. A watch tells of those after the version that it names: an
    object may be made between a list and the watch that follows it."""

    def __init__(self) -> None:
        self._told: list[tuple[int, str]] = []
        self._queues: set[asyncio.Queue[str | None]] = set()

    def tell(self, kind: str, obj: Object) -> None:
        """Tell all watches that an object was ADDED, MODIFIED or DELETED."""
        line = json.dumps({"type": kind, "object": obj})
        self._told.append((int(obj["metadata"]["resourceVersion"]), line))
        for queue in self._queues:
            queue.put_nowait(line)

    def end(self) -> None:
        """End all watches."""
        for queue in self._queues:
            queue.put_nowait(None)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """A watch, until it is ended."""
        since = int(request.query["resourceVersion"])
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        for version, line in self._told:
            if version > since:
                queue.put_nowait(line)
        self._queues.add(queue)
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while (line_or_end := await queue.get()) is not None:
                await response.write(line_or_end.encode() + b"\n")
        finally:
            self._queues.discard(queue)
        return response


class FakeApi:
    """Keeps objects in memory. `down` makes every call fail, `read_only` every write."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Object] = {}
        self.shadows: dict[tuple[str, str], Object] = {}
        self.node: Object = {
            "metadata": {"labels": {LABEL_NODE: "node-1"}},
            "status": {"capacity": {}, "allocatable": {}},
        }
        self.events: list[Object] = []
        self.asked: list[str] = []  # paths of all calls, also of those that failed
        self.from_copy: list[str] = []  # of reads that an API server answers without asking etcd
        self.writes: list[tuple[str, Any]] = []
        self.down = False
        self.conflicts = 0  # so many writes of ShadowPods are refused with 409
        self.read_only = False
        self.conditions: dict[tuple[str, str], Object] = {}  # the last that was applied to a pod
        self.rules_down = self.slices_down = False
        self.claims: dict[tuple[str, str], Object] = {}
        self.claims_down = 0  # the status with which reads of ResourceClaims fail
        self._rules = ""
        self._version = 1
        self._slices: dict[str, Object] = {}
        self._pod_watches, self._rule_watches, self._slice_watches = Watches(), Watches(), Watches()

    # ---- what a test does ----

    @property
    def rules(self) -> str:
        """The rules by which cards are lent; if empty, there is no ConfigMap."""
        return self._rules

    @rules.setter
    def rules(self, text: str) -> None:
        kind = "DELETED" if not text else "MODIFIED" if self._rules else "ADDED"
        self._version += 1
        self._rules = text
        self._rule_watches.tell(kind, self._config_map())

    def _config_map(self) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "namespace": "mizar",
                "name": "mizar-spot",
                "resourceVersion": str(self._version),
            },
            "data": {"rules.json": self._rules},
        }

    def put_pod(self, pod: Object) -> None:
        """Create or change a pod."""
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        kind = "MODIFIED" if key in self.pods else "ADDED"
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.pods[key] = pod
        self._pod_watches.tell(kind, pod)

    def delete_pod(self, namespace: str, name: str) -> None:
        pod = self.pods.pop((namespace, name))
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._pod_watches.tell("DELETED", pod)

    def put_slice(
        self, devices: dict[str, Object], name: str = "slice-1", generation: int = 1
    ) -> None:
        """Create or change a ResourceSlice of the node; `devices`: their fields by name."""
        self._version += 1
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = {
            "metadata": {"name": name, "resourceVersion": str(self._version)},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": name} | fields for name, fields in devices.items()],
            },
        }
        self._slice_watches.tell(kind, self._slices[name])

    def put_claim(self, namespace: str, name: str, *results: Object) -> None:
        """Create or change a ResourceClaim, which has devices of the node's pool."""
        own = {"driver": "gpu.nvidia.com", "pool": "node-1", "request": "r"}
        self.claims[namespace, name] = {
            "metadata": {"namespace": namespace, "name": name},
            "status": {"allocation": {"devices": {"results": [own | one for one in results]}}},
        }

    def delete_slice(self, name: str = "slice-1") -> None:
        gone = self._slices.pop(name)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._slice_watches.tell("DELETED", gone)

    def put_shadow(self, namespace: str, name: str, uid: str) -> None:
        self.shadows[namespace, name] = {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "ShadowPod",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {},
        }

    def status(self, namespace: str, name: str) -> Object:
        found: Object = self.shadows[namespace, name]["status"]
        return found

    def condition(self, namespace: str, name: str, type: str) -> tuple[str, str]:
        """(status, reason) of the condition; empty strings when the object has none yet."""
        for one in self.status(namespace, name).get("conditions", ()):
            if one["type"] == type:
                return one["status"], one["reason"]
        return "", ""

    # ---- what the agent asks ----

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if "watch" not in request.query and request.query.get("resourceVersion") == "0":
            self.from_copy.append(request.path)
        if self.down or (self.read_only and request.method != "GET"):
            return web.json_response({"message": "down"}, status=503)
        path = request.path.removesuffix("/status").split("/")
        if request.path == "/api/v1/pods":
            assert request.query["fieldSelector"] == "spec.nodeName=node-1"
            if "watch" in request.query:
                return await self._pod_watches.serve(request)
            return self._list(list(self.pods.values()))
        if request.path == "/api/v1/namespaces/mizar/configmaps":
            assert request.query["fieldSelector"] == "metadata.name=mizar-spot"
            if self.rules_down:
                return web.json_response({"message": "down"}, status=503)
            if "watch" in request.query:
                return await self._rule_watches.serve(request)
            return self._list([self._config_map()] if self._rules else [])
        if path[-1] == "resourceslices":
            selector = "spec.nodeName=node-1,spec.driver=gpu.nvidia.com"
            assert request.query["fieldSelector"] == selector
            if self.slices_down:
                return web.json_response({"message": "not allowed"}, status=403)
            if "watch" in request.query:
                return await self._slice_watches.serve(request)
            return self._list(list(self._slices.values()))
        if path[-2] == "resourceclaims":
            return self._claim((path[-3], path[-1]))
        if request.method != "GET":
            self.writes.append((request.path, json.loads(await request.text())))
        if path[3] == "nodes":
            if request.method == "GET":
                return web.json_response(self.node)
            return self._patch_node(self.writes[-1][1])
        if path[-2] == "shadowpods":
            return self._shadow((path[-3], path[-1]), request.method)
        if path[-2] == "pods" and request.method == "GET":
            return self._pod((path[-3], path[-1]))
        if path[-2] == "pods":
            return self._pod_status((path[-3], path[-1]), self.writes[-1][1])
        if path[-1] == "events":
            self.events.append(self.writes[-1][1])
            return web.json_response(self.writes[-1][1], status=201)
        return web.json_response({"message": f"what is {request.path}?"}, status=404)

    def _list(self, items: list[Object]) -> web.Response:
        meta = {"resourceVersion": str(self._version)}
        return web.json_response({"items": items, "metadata": meta})

    def _patch_node(self, patch: Any) -> web.Response:
        for field, numbers in patch["status"].items():
            merged = {**self.node["status"][field], **numbers}
            kept = {name: value for name, value in merged.items() if value is not None}
            self.node["status"][field] = kept
        return web.json_response(self.node)

    def _shadow(self, key: tuple[str, str], method: str) -> web.Response:
        if key not in self.shadows:
            return web.json_response({"reason": "NotFound"}, status=404)
        shadow = self.shadows[key]
        if method == "PATCH":
            body = self.writes[-1][1]
            other = body["metadata"].get("uid") != shadow["metadata"]["uid"]
            if other or self.conflicts:
                self.conflicts -= not other
                return web.json_response({"reason": "Conflict"}, status=409)
            shadow["status"] = body["status"]
        return web.json_response(shadow)

    def _claim(self, key: tuple[str, str]) -> web.Response:
        if self.claims_down:
            return web.json_response({"message": "not allowed"}, status=self.claims_down)
        if key not in self.claims:
            return web.json_response({"reason": "NotFound"}, status=404)
        return web.json_response(self.claims[key])

    def _pod(self, key: tuple[str, str]) -> web.Response:
        if key not in self.pods:
            return web.json_response({"reason": "NotFound"}, status=404)
        return web.json_response(self.pods[key])

    def _pod_status(self, key: tuple[str, str], body: Any) -> web.Response:
        """A server-side apply of conditions to a pod."""
        pod = self.pods.get(key)
        if pod is None:
            return web.json_response({"reason": "NotFound"}, status=404)
        if body["metadata"]["uid"] != pod["metadata"]["uid"]:
            return web.json_response({"reason": "Conflict"}, status=409)
        (self.conditions[key],) = body["status"]["conditions"]
        known = {one["type"]: one for one in pod["status"].get("conditions", ())}
        known |= {one["type"]: one for one in body["status"]["conditions"]}
        self.put_pod(pod | {"status": pod["status"] | {"conditions": list(known.values())}})
        return web.json_response(pod)

    def end_watches(self) -> None:
        """End all watches, as an API server does that is being shut down."""
        self._pod_watches.end()
        self._rule_watches.end()
        self._slice_watches.end()


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[KubeClient]:
    """A client of the fake server, over real HTTP."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", api.handle)
    async with TestServer(app) as server:
        async with KubeClient(plain(server.make_url(""))) as client:
            yield client
        api.end_watches()
