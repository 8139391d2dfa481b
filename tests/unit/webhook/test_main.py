import logging
from pathlib import Path

import pytest

from mizar_operator.webhook.main import main


def test_without_an_api_server_it_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    assert main([]) == 1
    assert "set KUBECONFIG, or run inside a cluster" in caplog.text
