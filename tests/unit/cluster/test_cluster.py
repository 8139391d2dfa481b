from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.errors import CommandFailed, NotSupported


@pytest.fixture
def existing(tmp_path: Path) -> Cluster:
    """A cluster known by its kubeconfig, with a kubectl that prints its arguments."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$KUBECONFIG $*"; cat; [ "$1" != fail ]\n')
    kubectl.chmod(0o755)
    return Cluster("theirs", tmp_path / "config", {"kubectl": kubectl, "helm": kubectl})


def test_commands_use_the_clusters_kubeconfig(existing: Cluster) -> None:
    assert existing.kubectl("get", "pods").stdout == f"{existing.kubeconfig} get pods\n"
    assert existing.helm("list", input="values").stdout.endswith("list\nvalues")


def test_a_failed_command_is_an_error_unless_asked_otherwise(existing: Cluster) -> None:
    assert existing.kubectl("fail", check=False).returncode == 1
    with pytest.raises(CommandFailed, match="kubectl fail` ended with 1"):
        existing.kubectl("fail")


def test_work_on_nodes_is_refused_with_a_sentence(existing: Cluster) -> None:
    assert existing.nodes == []
    with pytest.raises(NotSupported, match="needs a local cluster"):
        existing.restart_kubelet("node-1")
    with pytest.raises(NotSupported, match="loading images"):
        existing.load_image(Path("image.tar"))
