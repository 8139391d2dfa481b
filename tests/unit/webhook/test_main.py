import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mizar_kube.client import KubeClient
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import POD
from mizar_operator.webhook.main import Webhook, main
from mizar_operator.webhook.settings import Settings


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
