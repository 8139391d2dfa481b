"""Machines without a node, which become the kubelets of nodes that an autoscaler creates.

All nodes of a cluster but the first are taken out of it. Whenever a Node with a provider's ID
appears, the next of these machines starts under its name, as a cloud's instance would; when that
Node is deleted, the machine is switched off, and is spare again.

Kubernetes keeps pods off a Node until its kubelet is ready, but not if somebody else has created
the Node, and with cards in its status. Give such nodes the taint STARTING, which is removed once
the kubelet is ready and knows NVIDIA's device plugin.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import yaml

from cluster import power, state
from cluster.addresses import api_server
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.node import LocalNode

EVERY_S = 0.5
STARTING = "machines.example.com/starting"
"""The key of the taint of Nodes whose machine has not started."""
REGISTERED_AFTER_S = 2.0
_OF_THE_LAST_NODE = ("kubelet/pods", "kubelet/device-plugins", "mizar")
"""Folders below /var/lib that a new machine does not have."""


class SpareMachines:
    """The machines of one cluster, until `close`. `plugin_after`: seconds after the kubelet's start
    until NVIDIA's device plugin starts."""

    def __init__(self, cluster: Cluster, plugin_after: float = 0.0) -> None:
        self.plugin_after = plugin_after
        self._cluster = cluster
        self._layout = Layout(cluster.name)
        known = state.read(self._layout)
        if known is None:
            raise ClusterError(f"there is no cluster {cluster.name}")
        self._spare = [
            LocalNode(self._layout, known.spec, number, known.binaries)
            for number in range(2, known.spec.nodes + 1)
        ]
        self._used: dict[str, LocalNode] = {}
        self._ended = threading.Event()
        for one in self._spare:
            _clean(one)
            cluster.kubectl("delete", "node", one.name, "--ignore-not-found")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start and end no more nodes."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._look()
            except ClusterError as error:  # the API server may be busy
                print(f"spare machines: {error}", flush=True)

    def _look(self) -> None:
        line = '{range .items[*]}{.metadata.name} {.spec.providerID}{"\\n"}{end}'
        found = self._cluster.kubectl("get", "nodes", f"--output=jsonpath={line}").stdout
        names = [words[0] for words in map(str.split, found.splitlines()) if len(words) == 2]
        for gone in self._used.keys() - set(names):
            machine = self._used.pop(gone)
            _clean(machine)
            self._spare.append(machine)
        for name in names:
            if name not in self._used and self._spare:
                self._used[name] = self._spare.pop(0)
                self._start(self._used[name], name)

    def _start(self, machine: LocalNode, name: str) -> None:
        kubeconfig = self._kubeconfig(machine, name)
        proxy = machine.files.config / "kube-proxy.yaml"
        settings = yaml.safe_load(proxy.read_text()) | {"hostnameOverride": name}
        proxy.write_text(yaml.safe_dump(settings))
        machine.start_containerd()
        machine.wait_for_containerd()
        machine.start_kube_proxy()
        machine.start_kubelet_as(name, kubeconfig)
        machine.wait_for_kubelet()
        self._ended.wait(self.plugin_after)
        machine.start_allocator()
        # A pod that is admitted before the kubelet knows the plugin starts without its card.
        self._ended.wait(REGISTERED_AFTER_S)
        self._cluster.kubectl("wait", "node", name, "--for=condition=Ready", "--timeout=60s")
        self._cluster.kubectl("taint", "node", name, f"{STARTING}-", check=False)

    def _kubeconfig(self, machine: LocalNode, name: str) -> Path:
        """The kubelet's: the administrator's, who acts as the node. Names of such nodes are too
        long for a certificate."""
        path = machine.files.config / "kubeconfig"
        found = yaml.safe_load(self._cluster.kubeconfig.read_text())
        found["clusters"][0]["cluster"]["server"] = api_server()
        found["users"][0]["user"] |= {"as": f"system:node:{name}", "as-groups": ["system:nodes"]}
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(found))
        return path


def _clean(machine: LocalNode) -> None:
    """Switch it off, and remove what its last node has left."""
    power.off(machine)
    for folder in _OF_THE_LAST_NODE:
        shutil.rmtree(machine.files.var / "lib" / folder, ignore_errors=True)
    for file in (machine.files.var / "lib/kubelet").glob("*_state"):
        file.unlink()
