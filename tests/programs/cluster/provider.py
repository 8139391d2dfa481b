"""Where clusters come from. Another kind (kind, a cloud's) fits in by having these methods."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cluster.binaries import ensure
from cluster.binaries.progress import Progress
from cluster.cluster import TOOLS, Cluster
from cluster.errors import ClusterError
from cluster.spec import ClusterSpec


class Provider(Protocol):
    """Makes clusters. Mizar is installed into what it gives by cluster.mizar.install."""

    def up(self, spec: ClusterSpec, progress: Progress) -> Cluster:
        """A cluster as specified, ready for use; on failure nothing of it is left."""
        ...

    def get(self, name: str) -> Cluster:
        """The cluster of that name that is up; NotUp if there is none."""
        ...

    def down(self, name: str, progress: Progress) -> bool:
        """Remove the cluster of that name; False if there was none."""
        ...


class ExistingProvider:
    """A cluster that somebody else made, by its kubeconfig: kubectl and helm work on it.

    It has the nodes and cards that it has: of a spec, only the name is used. What needs access to
    a node raises NotSupported, and `down` leaves it alone.
    """

    def __init__(self, kubeconfig: Path) -> None:
        if not kubeconfig.is_file():
            raise ClusterError(f"there is no kubeconfig {kubeconfig}")
        self._kubeconfig = kubeconfig.absolute()

    def up(self, spec: ClusterSpec, progress: Progress) -> Cluster:
        """The cluster; ClusterError if its API server does not answer."""
        binaries = ensure(progress, TOOLS)
        tools = {name: binaries.path(name) for name in TOOLS}
        cluster = Cluster(spec.name, self._kubeconfig, tools)
        with progress.step("asking the API server for its version"):
            cluster.kubectl("version", "--request-timeout=30s")
        return cluster

    def get(self, name: str) -> Cluster:
        """The cluster, under this name."""
        return self.up(ClusterSpec(name), Progress.silent())

    def down(self, name: str, progress: Progress) -> bool:
        """Nothing: it is not ours to remove."""
        return False
