"""One local cluster, without Mizar, for all integration tests of a run.

MIZAR_INTEGRATION_CLUSTER reuses one instead: the name of a local cluster that is up, or the path
of a kubeconfig for tests that need no more than an API server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, ClusterSpec
from cluster.binaries import ensure
from cluster.binaries.progress import Progress
from cluster.local import LocalProvider

NAME = f"integration-{os.getpid()}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node with two simulated cards and no Mizar."""
    if chosen := os.environ.get("MIZAR_INTEGRATION_CLUSTER"):
        yield _existing(chosen)
        return
    up = LocalProvider().up(ClusterSpec(name=NAME, mizar=False), Progress())
    try:
        yield up
    finally:
        up.down()


def _existing(chosen: str) -> Cluster:
    if "/" not in chosen:
        return LocalProvider().get(chosen)
    programs = ensure(Progress(), ["kubectl", "helm"])
    tools = {name: programs.path(name) for name in ("kubectl", "helm")}
    return Cluster("existing", Path(chosen), tools)
