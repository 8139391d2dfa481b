"""Where a cluster keeps its files: all in one folder, which `down` removes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/var/tmp/mizar-cluster")


@dataclass(frozen=True)
class Layout:
    """The files of the cluster called `name`."""

    name: str
    root: Path = ROOT

    @property
    def dir(self) -> Path:
        return self.root / self.name

    @property
    def state_file(self) -> Path:
        return self.dir / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.dir / "kubeconfig"

    @property
    def loaded(self) -> Path:
        """Says which images the nodes have."""
        return self.dir / "loaded.json"

    @property
    def pki(self) -> Path:
        return self.dir / "pki"

    @property
    def logs(self) -> Path:
        return self.dir / "logs"

    @property
    def processes(self) -> Path:
        return self.dir / "processes"

    @property
    def etcd(self) -> Path:
        return self.dir / "etcd"

    @property
    def client_cache(self) -> Path:
        """Where kubectl and helm keep what they would leave in the user's home folder."""
        return self.dir / "client-cache"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def node(self, node: str) -> NodeLayout:
        return NodeLayout(self.dir / "nodes" / node)

    def make(self) -> None:
        """Create the folders."""
        self.dir.mkdir(parents=True, mode=0o755)
        for folder in (self.pki, self.logs, self.processes, self.etcd, self.client_cache):
            folder.mkdir()


@dataclass(frozen=True)
class NodeLayout:
    """The files of one node, as the host sees them."""

    dir: Path

    @property
    def config(self) -> Path:
        """Configuration of the node's kubelet, containerd, kube-proxy and CNI."""
        return self.dir / "config"

    @property
    def var(self) -> Path:
        """Becomes the node's /var."""
        return self.dir / "var"

    @property
    def run(self) -> Path:
        """Where the node's /run is put together."""
        return self.dir / "run"

    @property
    def containerd(self) -> Path:
        """containerd's images and containers."""
        return self.var / "lib/containerd"

    @property
    def etc_changes(self) -> Path:
        """What the node writes to its /etc."""
        return self.dir / "etc-changes"

    @property
    def etc_work(self) -> Path:
        return self.dir / "etc-work"

    @property
    def sysctls(self) -> Path:
        """Files that stand over sysctls which belong to the whole machine."""
        return self.dir / "sysctls"

    @property
    def simgpu(self) -> Path:
        """Becomes the node's /run/simgpu."""
        return self.dir / "simgpu"

    def make(self) -> None:
        """Create the folders."""
        for folder in (
            self.config,
            self.var,
            self.run,
            self.etc_changes,
            self.etc_work,
            self.sysctls,
            self.simgpu,
        ):
            folder.mkdir(parents=True)
