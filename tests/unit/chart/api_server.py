"""An API server that helm may ask for objects of a cluster, for what templates look up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.chart import Object

SERVED = {
    "/api/v1": {"configmaps": "ConfigMap", "namespaces": "Namespace"},
    "/apis/admissionregistration.k8s.io/v1": {
        "mutatingwebhookconfigurations": "MutatingWebhookConfiguration"
    },
    "/apis/mizar.share/v1alpha1": {"shadowpods": "ShadowPod", "gpupools": "GPUPool"},
    "/apis/scheduling.k8s.io/v1": {"priorityclasses": "PriorityClass"},
}
"""The kinds that it serves, by group: their plural and their name."""
NAMESPACED = ("ConfigMap", "ShadowPod")


class ApiServer:
    """Serves objects to helm. `url`: its address; `asked`: the paths that it was asked for."""

    def __init__(self, url: str, objects: list[Object]) -> None:
        self.url = url
        self.asked: list[str] = []
        self._objects = objects

    def answer(self, path: str) -> Object | None:
        """The answer to a question; None if there is no such object."""
        self.asked.append(path)
        if kinds := SERVED.get(path):
            return _resources(path, kinds)
        group, plural, namespace, name = _parsed(path)
        found = [one for one in self._objects if one["kind"] == SERVED[group][plural]]
        if not name:
            return {"kind": "List", "apiVersion": "v1", "items": found}
        for one in found:
            meta = one["metadata"]
            if (meta.get("namespace", ""), meta["name"]) == (namespace, name):
                return one
        return None


def _parsed(path: str) -> tuple[str, str, str, str]:
    """The group, plural, namespace and name that a path asks for; the last two may be empty."""
    (group,) = (one for one in SERVED if path.startswith(f"{one}/"))
    words = path.removeprefix(f"{group}/").split("/")
    namespace = words[1] if words[0] == "namespaces" and len(words) > 2 else ""
    plural, *name = words[2:] if namespace else words
    return group, plural, namespace, "".join(name)


def _resources(group: str, kinds: dict[str, str]) -> Object:
    version = group.removeprefix("/apis/").removeprefix("/api/")
    found = [
        {
            "name": plural,
            "singularName": "",
            "kind": kind,
            "namespaced": kind in NAMESPACED,
            "verbs": ["get", "list"],
        }
        for plural, kind in kinds.items()
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": found,
    }


@contextmanager
def serving(objects: list[Object]) -> Iterator[ApiServer]:
    """An API server with these objects, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = made.answer(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a failed test shows helm's own words."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = ApiServer(f"http://127.0.0.1:{server.server_port}", objects)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
