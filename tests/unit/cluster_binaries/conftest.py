"""A cache of the test's own, and a server that publishes releases as the official hosts do."""

from __future__ import annotations

import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.binaries import components
from cluster.binaries.components import COMPONENTS, Component, Release


class ReleaseServer:
    """Serves the files in `published` (path -> bytes) and remembers what was asked for."""

    def __init__(self) -> None:
        self.published: dict[str, bytes] = {}
        self.cut: set[str] = set()  # paths of which only half is sent
        self.asked: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def do_HEAD(self) -> None:
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def publish(self, component: Component) -> None:
        """Publish programs that print their name, laid out and with checksums as officially."""
        for release in component.releases:
            data = _archive(release) if release.members else _program(release.program)
            self.published[release.path] = data
            line = f"{hashlib.sha256(data).hexdigest()}  {Path(release.path).name}\n"
            self.published[release.checksum] = line.encode()

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        data = self.published.get(request.path)
        if data is None:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[: len(data) // 2] if request.path in self.cut else data)

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _program(name: str) -> bytes:
    return f"#!/bin/sh\necho {name}\n".encode()


def _archive(release: Release) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for program, path in release.members.items():
            item = tarfile.TarInfo(path)
            item.size = len(_program(program))
            tar.addfile(item, io.BytesIO(_program(program)))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("MIZAR_CACHE", str(root))
    for component in COMPONENTS:
        monkeypatch.delenv(component.folder_variable, raising=False)
    return root


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReleaseServer]:
    """A release server in place of all official hosts."""
    server = ReleaseServer()
    for host in (components.KUBERNETES_HOST, components.GITHUB, components.HELM_HOST):
        monkeypatch.setenv(host.variable, server.url)
    yield server
    server.close()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes connections and sends nothing, in place of Kubernetes' host."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv(components.KUBERNETES_HOST.variable, url)
        yield url


@pytest.fixture
def kubernetes() -> Component:
    return COMPONENTS[0]
