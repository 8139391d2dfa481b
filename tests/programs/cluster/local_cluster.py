"""A cluster on this machine: all that any cluster can do, and work on its nodes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster import cleanup, power, state
from cluster.binaries.progress import Progress
from cluster.cluster import COMMAND_LIMIT, TOOLS, Cluster, Done, Node
from cluster.control_plane import API_SERVER
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.loaded_images import Loaded
from cluster.node import LocalNode
from cluster.processes import Processes
from cluster.spec import ClusterSpec
from cluster.waiting import wait_until


class LocalCluster(Cluster):
    """A cluster made by LocalProvider. The object is valid while the cluster is up."""

    def __init__(self, layout: Layout, spec: ClusterSpec, binaries: Path) -> None:
        tools = {name: binaries / name for name in TOOLS}
        super().__init__(spec.name, layout.kubeconfig, tools)
        self.spec = spec
        self._layout = layout
        self._nodes = {
            name: LocalNode(layout, spec, number, binaries)
            for number, name in enumerate(spec.node_names(), start=1)
        }
        self._api_server: list[str] = []

    @property
    def nodes(self) -> list[Node]:
        return [node.public() for node in self._nodes.values()]

    @property
    def logs_dir(self) -> Path:
        return self._layout.logs

    def environment(self) -> dict[str, str]:
        cache = self._layout.client_cache
        helm = {f"HELM_{what}_HOME": str(cache / "helm") for what in ("CACHE", "CONFIG", "DATA")}
        return {**super().environment(), **helm, "KUBECACHEDIR": str(cache / "kube")}

    def load_image(self, archive: Path, node: str | None = None) -> None:
        loaded = Loaded(self._layout.loaded)
        if loaded.has(archive):
            return
        loaded.forget(archive)
        chosen = [self._node(node)] if node else list(self._nodes.values())
        with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
            for result in [pool.submit(one.load_image, archive) for one in chosen]:
                result.result()
        if len(chosen) == len(self._nodes):
            loaded.add([archive])

    def exec_on_node(
        self,
        node: str,
        argv: Sequence[str],
        input: str | None = None,
        check: bool = True,
        timeout: float = COMMAND_LIMIT,
    ) -> Done:
        return self._node(node).run(argv, input, check, timeout)

    def entering(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on a node."""
        return self._node(node).entering(argv)

    def restart_kubelet(self, node: str) -> None:
        self._node(node).end("kubelet", signal.SIGTERM)
        self.start_kubelet(node)

    def kill_kubelet(self, node: str) -> None:
        self._node(node).end("kubelet", signal.SIGKILL)

    def start_kubelet(self, node: str) -> None:
        self._node(node).start_kubelet()
        self._node(node).wait_for_kubelet()

    def kill_containerd(self, node: str) -> None:
        self._node(node).end(self._node(node).runtime, signal.SIGKILL)

    def start_containerd(self, node: str) -> None:
        self._node(node).start_containerd()
        self._node(node).wait_for_containerd()

    def kill_allocator(self, node: str) -> None:
        self._node(node).end(self._node(node).allocator, signal.SIGKILL)

    def start_allocator(self, node: str) -> None:
        self._node(node).start_allocator()

    def power_off(self, node: str) -> None:
        power.off(self._node(node))

    def power_on(self, node: str) -> None:
        power.on(self._node(node))

    def kill_api_server(self) -> None:
        processes = Processes(self._layout)
        processes.check([API_SERVER])
        process = processes.get(API_SERVER)
        assert process is not None  # It runs.
        self._api_server = process.argv()
        process.signal(signal.SIGKILL)
        processes.stop(API_SERVER)

    def start_api_server(self) -> None:
        if not self._api_server:
            raise ClusterError("the API server was not killed: kill_api_server comes first")
        processes = Processes(self._layout)
        first = next(iter(self._nodes.values()))
        processes.run(API_SERVER, self._api_server, first.holder)
        wait_until("the API server being ready", self._api_server_is_ready, processes, [API_SERVER])

    def _api_server_is_ready(self) -> bool:
        return self.kubectl("get", "--raw=/readyz", check=False).returncode == 0

    def down(self) -> None:
        with state.locked(self._layout):
            cleanup.remove(self._layout, Progress.silent())

    def _node(self, name: str) -> LocalNode:
        if name not in self._nodes:
            known = ", ".join(self._nodes)
            raise ClusterError(f"cluster {self.name} has no node {name}; it has {known}")
        return self._nodes[name]
