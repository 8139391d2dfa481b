"""Kopf's part: login, and the three kinds, whose handlers only put a key into the queue.

Kopf runs in a thread and an event loop of its own. When it ends, it waits for and cancels every
task of its loop that it did not start; and when it fails, because the API server was away for a
minute, the reconciler must not go down with it. What is planned comes from the informers alone,
since Kopf says neither when it has listed everything nor what went away while it listed anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf

from mizar_core.names import GROUP, VERSION
from mizar_kube.config import SERVICE_ACCOUNT

log = logging.getLogger(__name__)

Body = Mapping[str, Any]
Touched = Callable[[str, Body], None]
"""Called with the kind's plural and the object, in Kopf's thread."""

# The kubelet renews a service account's token in place; log in again before the old one ends.
LOGIN_FOR = timedelta(minutes=5)
RESTART_AFTER_S = 5.0


def registry(touched: Touched, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Handlers that leave no trace on objects: no finalizer, no annotation."""
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return connection(kubeconfig, kwargs)

    for plural in ("gpupools", "gpuquotas", "shadowpods"):

        @kopf.on.event(GROUP, VERSION, plural, registry=found, id=plural, param=plural)
        async def event(*, body: kopf.Body, param: Any = None, **_: Any) -> None:
            touched(str(param), body)

    return found


def connection(kubeconfig: str | None, kwargs: Any) -> kopf.ConnectionInfo | None:
    """How Kopf is to reach the API server: as `mizar_kube.config` does."""
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if kubeconfig or os.environ.get("KUBECONFIG") or not host:
        return kopf.login_with_kubeconfig(**kwargs)
    # Kopf's own takes kubernetes.default.svc, which needs DNS.
    address = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{address}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token=Path(SERVICE_ACCOUNT / "token").read_text().strip(),
        expiration=datetime.now(UTC) + LOGIN_FOR,
    )


def settings() -> kopf.OperatorSettings:
    """No events of its own, no scanning for kinds that come and go, timeouts everywhere."""
    chosen = kopf.OperatorSettings()
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.posting.loggers = False
    chosen.networking.connect_timeout = 10
    chosen.networking.request_timeout = 30
    chosen.watching.server_timeout = 240
    chosen.watching.client_timeout = 300
    chosen.queueing.idle_timeout = 1
    chosen.queueing.exit_timeout = 0.2
    chosen.process.ultimate_exiting_timeout = None
    return chosen


class Kopf:
    """The thread. `start`, then `stop`, which does not wait."""

    def __init__(self, touched: Touched, kubeconfig: str | None) -> None:
        self._touched = touched
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin to follow the three kinds."""
        if self._kubeconfig:
            # The only way to tell Kopf.
            os.environ["KUBECONFIG"] = self._kubeconfig
        self._thread.start()

    def stop(self) -> None:
        """End soon; the process need not wait for it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._operate())
            except Exception:
                log.exception("kopf failed; again in %.0f s", RESTART_AFTER_S)
            self._stop.wait(RESTART_AFTER_S)

    async def _operate(self) -> None:
        await kopf.operator(
            registry=registry(self._touched, self._kubeconfig),
            settings=settings(),
            standalone=True,
            clusterwide=True,
            stop_flag=self._stop,
        )
