import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import Unavailable
from mizar_kube.informer import Informer, Timing, Watched, wait_synced
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, POD, Kind
from mizar_operator.webhook.main import Webhook, main
from mizar_operator.webhook.self_signed_certificate import SelfSigned
from mizar_operator.webhook.settings import Settings
from support import virtual_time

AWAY_S = 600.0
SOON_S = 5.0


def test_without_an_api_server_it_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    assert main([]) == 1
    assert "set KUBECONFIG, or run inside a cluster" in caplog.text


def test_an_api_server_that_is_away_for_an_hour_is_no_reason_to_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The webhook was killed after a quarter of one, and its cache lost. It is only unready."""
    now = 0.0
    watched, timing = Watched(POD), Timing(clock=lambda: now)
    copy: Informer[Any] = Informer(cast(KubeClient, None), watched, lambda one: one, timing)
    webhook = Webhook(Settings(), cast(KubeClient, None))
    monkeypatch.setattr(webhook, "_cache", SimpleNamespace(informers=[copy], synced=True))
    copy.synced.set()
    now = 3600.0
    copy._tried_at = 3590.0
    assert "pods: nothing heard from the API server for 3600 s" in webhook._unready()
    assert webhook._stuck() == []
    copy._tried_at = 2900.0
    assert webhook._stuck() == ["pods: the API server was not asked for 700 s"]


class BackLater:
    """An API server that is away for AWAY_S, and then has an object of each kind of Kubernetes."""

    async def list_pages(self, kind: Kind, *_: object, **__: object) -> AsyncIterator[Listing]:
        if asyncio.get_running_loop().time() < AWAY_S:
            raise Unavailable("no answer from the API server")
        found = {"metadata": {"namespace": "n", "name": "w", "resourceVersion": "1"}}
        yield Listing([] if kind in (GPU_POOL, GPU_QUOTA) else [found], "1")

    async def watch(self, *_: object, **__: object) -> AsyncIterator[object]:
        await asyncio.sleep(AWAY_S)
        return
        yield


def test_a_webhook_that_started_while_the_api_server_was_away_asks_it_soon() -> None:
    """Until it has its copies and its certificate, all share pods are refused."""
    webhook = Webhook(Settings(), cast(KubeClient, BackLater()))

    async def until_back() -> float:
        certificate = webhook._certificate
        assert isinstance(certificate, SelfSigned)
        own, *watches = certificate.tasks()
        own.close()
        tasks = [asyncio.ensure_future(one) for one in (*webhook._cache.tasks(), *watches)]
        await wait_synced(webhook._cache.informers, 2 * AWAY_S)
        await certificate._changed.wait()
        for task in tasks:
            task.cancel()
        return asyncio.get_running_loop().time()

    assert AWAY_S <= virtual_time.run(until_back()) <= AWAY_S + SOON_S
