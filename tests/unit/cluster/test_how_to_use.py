"""What `make up` says in the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.cli import how_to_use

CLUSTER: Any = SimpleNamespace(
    kubeconfig=Path("/made/kubeconfig"), tool=lambda one: f"/tools/{one}"
)


@pytest.mark.parametrize(
    ("installed", "aliases"),
    [
        (("kubectl", "helm"), []),
        (("kubectl",), ["alias helm=/tools/helm"]),
        ((), ["alias kubectl=/tools/kubectl", "alias helm=/tools/helm"]),
    ],
)
def test_a_machine_without_kubectl_uses_the_clusters(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], aliases: list[str]
) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda one: f"/usr/bin/{one}" if one in installed else None
    )
    assert how_to_use(CLUSTER) == ["export KUBECONFIG=/made/kubeconfig", *aliases]
