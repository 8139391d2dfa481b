"""Karpenter has the service account of its own chart, and offers the tests' instance types."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from cluster import karpenter
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress


class FakeCluster:
    """A cluster whose kubectl remembers its arguments."""

    name = "fake"

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.calls: list[tuple[str, ...]] = []

    def kubectl(self, *args: str, input: str | None = None) -> CompletedProcess[str]:
        self.calls.append((*args, *([input] if input else [])))
        return CompletedProcess(args, 0, "a-token\n" if args[0] == "create" else "", "")

    def helm(self, *args: str) -> CompletedProcess[str]:
        return CompletedProcess(args, 0, " ".join(args), "")


@pytest.mark.parametrize("version", ["1.15.0", "v1.15", "main"])
def test_a_name_that_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(SetupError, match=r"write it as in v1\.15\.0"):
        karpenter.build(version, Progress.silent())


def test_its_definitions_and_roles_are_created_and_nothing_else_of_its_chart(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster(tmp_path / "none")
    karpenter.install(cluster, tmp_path)  # type: ignore[arg-type]
    definitions, namespace, roles = cluster.calls
    assert definitions[2:] == (f"--filename={tmp_path}/chart/crds", f"--filename={tmp_path}/crds")
    assert yaml.safe_load(namespace[-1])["metadata"]["name"] == "karpenter"
    assert "--show-only=templates/clusterrole.yaml" in roles[-1]
    assert "deployment" not in roles[-1]


def test_it_has_the_service_accounts_token_and_not_the_administrators_certificate(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kubeconfig"
    users = [{"name": "admin", "user": {"client-key-data": "secret"}}]
    file.write_text(yaml.safe_dump({"clusters": ["one"], "users": users}))
    found: dict[str, Any] = karpenter._kubeconfig(FakeCluster(file))  # type: ignore[arg-type]
    assert found["users"] == [{"name": "admin", "user": {"token": "a-token"}}]
    assert found["clusters"] == ["one"]


def test_instance_types_have_what_a_node_needs() -> None:
    found = karpenter._type("two-cards", {"nvidia.com/gpu": "2"})
    assert found["resources"] == {
        "cpu": "8",
        "memory": "32Gi",
        "ephemeral-storage": "100Gi",
        "nvidia.com/gpu": "2",
    }
    assert json.dumps(found["offerings"]).count('"operator": "In"') == 2
