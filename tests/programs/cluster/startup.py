"""Makes a cluster, step by step, until its nodes are ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups, control_plane, credentials, network, state
from cluster.addresses import API_PORT, dns_ip, node_ip
from cluster.api import PHYSICAL_RESOURCE, Api
from cluster.binaries import Binaries
from cluster.binaries.progress import Progress
from cluster.images import clone_store
from cluster.layout import Layout
from cluster.loaded_images import Loaded
from cluster.node import LocalNode, machine
from cluster.processes import Processes
from cluster.spec import ClusterSpec
from cluster.waiting import wait_until

# Where pods ask for names. No name server runs: they are told so at once, and not after a while;
# with CoreDNS deployed as usual, it is found here.
NAME_SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "kube-dns", "namespace": "kube-system"},
    "spec": {
        "clusterIP": dns_ip(),
        "selector": {"k8s-app": "kube-dns"},
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    },
}
DRA_DRIVER = "gpu.nvidia.com"
# As in the chart of NVIDIA's DRA driver: cards that it allocates can be requested by the name that
# they have with the device plugin.
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRA_DRIVER},
    "spec": {
        "extendedResourceName": PHYSICAL_RESOURCE,
        "selectors": [
            {
                "cel": {
                    "expression": f"device.driver == '{DRA_DRIVER}'"
                    f" && device.attributes['{DRA_DRIVER}'].type == 'gpu'"
                }
            }
        ],
    },
}
FORWARDER = Path(__file__).with_name("forwarder.py")


@dataclass(frozen=True)
class Images:
    """What each node knows from the start: `archives`, imported into a containerd store."""

    archives: Sequence[Path]
    store: Path


class Startup:
    """Starts one cluster. If it raises an error, the caller removes what exists by then."""

    def __init__(
        self,
        layout: Layout,
        spec: ClusterSpec,
        binaries: Binaries,
        images: Images,
        progress: Progress,
    ) -> None:
        self._layout = layout
        self._spec = spec
        self._binaries = binaries.dir
        self._images = images
        self._progress = progress
        self._processes = Processes(layout)
        self._nodes = [
            LocalNode(layout, spec, number, binaries.dir) for number in range(1, spec.nodes + 1)
        ]

    def run(self) -> None:
        """Make the cluster. It is usable on return."""
        before = os.umask(0o022)  # pods of any user look into what is made here
        try:
            self._run()
        finally:
            os.umask(before)

    def _run(self) -> None:
        with self._progress.step("making namespaces, network and certificates"):
            self._prepare()
        with self._progress.step("starting etcd, API server and container runtime"):
            api = self._start_api_server()
        if not self._spec.api_only:
            with self._progress.step(f"starting {self._count('node')}"):
                self._start_rest(api)
        state.write(self._layout, self._state(ready=True))

    def _state(self, ready: bool) -> state.State:
        return state.State(self._spec, state.current_boot(), self._binaries, ready)

    def _count(self, what: str) -> str:
        number = self._spec.nodes
        return f"{number} {what}{'' if number == 1 else 's'}"

    def _prepare(self) -> None:
        self._layout.make()
        Loaded(self._layout.loaded).add(self._images.archives)
        state.write(self._layout, self._state(ready=False))
        self._credentials = credentials.make(self._layout, self._spec.node_names())
        cgroups.create(self._layout.name, self._spec.node_names())
        this_machine = machine()
        for node in self._nodes:
            node.make()
            node.configure(self._credentials, this_machine)
        network.connect([node.holder for node in self._nodes])

    def _start_api_server(self) -> Api:
        self._start("etcd", control_plane.etcd(self._layout.etcd))
        arguments = control_plane.api_server(self._credentials)
        if self._spec.api_only:
            # No controller makes service accounts, without which pods could not be created.
            arguments.append("--disable-admission-plugins=ServiceAccount")
        self._start(control_plane.API_SERVER, arguments)
        for node in [] if self._spec.api_only else self._nodes:
            self._give_images(node)
            node.start_containerd()
            if self._spec.cards:
                node.make_cards()
                node.start_allocator()
        api = Api(self._forward(), self._credentials)
        names = ["etcd", control_plane.API_SERVER, "forwarder"]
        self._wait_for("the API server being ready", api.ready, names)
        for node in [] if self._spec.api_only else self._nodes:
            node.wait_for_containerd()
        return api

    def _give_images(self, node: LocalNode) -> None:
        if not self._spec.cri_o:
            clone_store(self._images.store, node.files.containerd)
            return
        for archive in self._images.archives:
            node.load_image(archive)

    def _wait_for(self, what: str, probe: Callable[[], object], names: Sequence[str]) -> None:
        wait_until(what, probe, self._processes, names)

    def _start(self, program: str, arguments: Sequence[str]) -> None:
        """Start a part of the control plane, on the first node."""
        argv = [str(self._binaries / program), *arguments]
        self._processes.run(program, argv, self._nodes[0].holder)

    def _forward(self) -> int:
        """Start the forwarder and write the kubeconfig; the host's port."""
        port_file = self._layout.dir / "port"
        target = [str(self._nodes[0].holder.pid), node_ip(1), str(API_PORT)]
        argv = [sys.executable, "-I", "-S", str(FORWARDER), str(port_file), *target]
        self._processes.run("forwarder", argv)
        self._wait_for("the forwarder listening", port_file.exists, ["forwarder"])
        port = int(port_file.read_text())
        credentials.write_kubeconfig(
            self._layout.kubeconfig,
            self._layout.name,
            f"https://127.0.0.1:{port}",
            self._credentials.ca.cert,
            self._credentials.admin,
        )
        return port

    def _start_rest(self, api: Api) -> None:
        self._wait_for(
            "the name server's Service",
            lambda: api.create("/api/v1/namespaces/kube-system/services", NAME_SERVICE),
            [control_plane.API_SERVER],
        )
        if self._spec.dra_nodes:
            self._wait_for(
                "the DeviceClass of the cards",
                lambda: api.create("/apis/resource.k8s.io/v1/deviceclasses", DEVICE_CLASS),
                [control_plane.API_SERVER],
            )
        self._start("kube-controller-manager", control_plane.controller_manager(self._credentials))
        self._start("kube-scheduler", control_plane.scheduler(self._credentials))
        for node in self._nodes:
            node.start_kube_proxy()
            node.start_kubelet()
        for node in self._nodes:
            self._wait_for_node(api, node)
        self._wait_for(
            "the default service account",
            lambda: api.object("/api/v1/namespaces/default/serviceaccounts/default"),
            control_plane.NAMES,
        )

    def _wait_for_node(self, api: Api, node: LocalNode) -> None:
        names = [node.process(one) for one in ("kubelet", node.runtime, "kube-proxy")]
        if self._spec.cards:
            names.append(node.process(node.allocator))
        self._wait_for(
            f"{node.name} being ready",
            lambda: api.node_ready(node.name, self._spec.cards, node.uses_dra),
            [*control_plane.NAMES, *names],
        )
