"""One local node: its namespaces, the programs in it, and its runtime's images."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

import simgpu
from cluster import cgroups, crio, mounts, netns, network, node_config, nvidia_plugin
from cluster.addresses import node_ip, pod_subnet
from cluster.binaries import folder
from cluster.cluster import COMMAND_LIMIT, Done, Node, command
from cluster.credentials import Credentials
from cluster.errors import ClusterError, CommandFailed
from cluster.layout import Layout, NodeLayout
from cluster.node_config import Machine
from cluster.processes import PATH, Process, Processes
from cluster.spec import ClusterSpec
from cluster.state import holder_name
from cluster.waiting import wait_until
from simgpu import container_runtime

CAP_SYS_RESOURCE = 24
KUBELET_HEALTH_PORT = 10248
REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class LocalNode:
    """The node with this number (from 1) of a local cluster."""

    layout: Layout
    spec: ClusterSpec
    number: int
    binaries: Path

    @property
    def name(self) -> str:
        return self.spec.node_names()[self.number - 1]

    @property
    def files(self) -> NodeLayout:
        return self.layout.node(self.name)

    @property
    def processes(self) -> Processes:
        return Processes(self.layout)

    @property
    def holder(self) -> Process:
        """The node's first process; its namespaces exist as long as it does."""
        holder = self.processes.get(holder_name(self.name))
        if holder is None or not holder.alive():
            raise ClusterError(f"{self.name} of cluster {self.layout.name} does not exist any more")
        return holder

    def public(self) -> Node:
        """The node as users of the cluster see it."""
        root = Path(f"/proc/{self.holder.pid}/root")
        return Node(self.name, node_ip(self.number), root, self.files.simgpu)

    @property
    def runtime(self) -> str:
        """The program that is the node's container runtime."""
        return "crio" if self.spec.cri_o else "containerd"

    @property
    def runtime_config(self) -> Path:
        """The runtime's configuration, as TOML."""
        return self.files.config / f"{self.runtime}.toml"

    @property
    def _socket(self) -> str:
        return crio.SOCKET if self.spec.cri_o else node_config.CONTAINERD_SOCKET

    def process(self, program: str) -> str:
        """The name of one of the node's processes."""
        return f"{self.name}-{program}"

    def start(self, program: str, argv: Sequence[str]) -> None:
        """Start a program on the node."""
        env = {"PATH": self._path(), "TMPDIR": "/var/tmp", "HOME": "/root"}
        self.processes.run(self.process(program), argv, self.holder, env)

    def _path(self) -> str:
        return f"{self.binaries}:{PATH}"

    def make(self) -> None:
        """Make the node's folders and namespaces."""
        self.files.make()
        mounts.prepare(self.files)
        plan = mounts.plan(
            self.files, [*visible(self.layout, self.binaries), *self._own_programs()]
        )
        self.processes.hold(holder_name(self.name), self.name, plan)

    def _own_programs(self) -> list[Path]:
        """Folders of programs that only some clusters have."""
        runtime = [crio.folder(self.spec.cri_o)] if self.spec.cri_o else []
        version = self.spec.nvidia_plugin
        return [*runtime, *([nvidia_plugin.folder(version)] if version else [])]

    def configure(self, credentials: Credentials, machine: Machine) -> None:
        """Write the configuration of the node's programs."""
        config = self.files.config
        resolv_conf = config / "resolv.conf"
        resolv_conf.touch()
        root = cgroups.node_root(self.layout.name, self.name)
        kubelet = node_config.kubelet(credentials, self.name, root, resolv_conf, self._socket)
        kubelet |= node_config.oom_score(machine)
        (config / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        minor = folder.kubernetes_minor(self.binaries / "kubelet")
        proxy = node_config.kube_proxy(credentials, self.name, machine, minor)
        (config / "kube-proxy.yaml").write_text(yaml.safe_dump(proxy))
        cni = config / "cni"
        cni.mkdir()
        network_list = json.dumps(node_config.cni(pod_subnet(self.number)), indent=2)
        (cni / "10-pods.conflist").write_text(network_list)
        text = self._crio(cni, machine) if self.spec.cri_o else self._containerd(cni, machine)
        self.runtime_config.write_text(text)

    def _containerd(self, cni: Path, machine: Machine) -> str:
        script = container_runtime.script(sys.executable)
        nvidia = self._script("nvidia-container-runtime", script)
        version = folder.containerd_version(self.binaries / "containerd")
        return node_config.containerd(self.binaries, cni, nvidia, machine, version)

    def _crio(self, cni: Path, machine: Machine) -> str:
        plain = crio.script(crio.RUNTIME, machine.may_lower_oom_score)
        default = self._script(crio.RUNTIME, plain)
        script = container_runtime.script(sys.executable, str(default))
        nvidia = self._script("nvidia-container-runtime", script)
        handlers = {crio.RUNTIME: default, node_config.NVIDIA: nvidia}
        monitor = self._script("conmon", crio.MONITOR_SCRIPT)
        return crio.config(crio.folder(self.spec.cri_o), self.binaries, cni, handlers, monitor)

    def _script(self, name: str, text: str) -> Path:
        path = self.files.config / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def make_cards(self) -> None:
        """Make the node's simulated cards; their UUIDs follow from its and the cluster's name."""
        spec = self.spec
        seed = f"{spec.name}/{self.name}"
        simgpu.create(
            self.files.simgpu, spec.cards, spec.card_memory_mib, spec.card_name, seed
        ).close()

    @property
    def uses_dra(self) -> bool:
        """Whether the node's cards are allocated by DRA."""
        return self.spec.uses_dra(self.number)

    @property
    def allocator(self) -> str:
        """The program that offers the node's cards to Kubernetes."""
        return "dra-driver" if self.uses_dra else "device-plugin"

    def start_allocator(self) -> None:
        """Start NVIDIA's device plugin, or a stand-in for it or for the DRA driver."""
        if self.uses_dra:
            self._start_dra_driver()
        elif version := self.spec.nvidia_plugin:
            self.start(self.allocator, nvidia_plugin.start_command(version))
        else:
            self.start(self.allocator, [sys.executable, "-m", "simgpu.device_plugin"])

    def _start_dra_driver(self) -> None:
        kubeconfig = self.layout.pki / f"{self.name}.kubeconfig"
        options = [f"--node={self.name}", f"--kubeconfig={kubeconfig}"]
        self.start(self.allocator, [sys.executable, "-m", "simgpu.dra_driver", *options])

    def start_containerd(self) -> None:
        place = crio.folder(self.spec.cri_o) if self.spec.cri_o else self.binaries
        self.start(self.runtime, [str(place / self.runtime), f"--config={self.runtime_config}"])

    def wait_for_containerd(self) -> None:
        """Wait until containerd, or the CRI-O in its place, answers."""
        name = self.process(self.runtime)
        wait_until(f"{name} taking calls", self._containerd_answers, self.processes, [name])

    def _containerd_answers(self) -> bool:
        path = self.files.run / self._socket.removeprefix("/run/")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        return True

    def start_kube_proxy(self) -> None:
        config = self.files.config / "kube-proxy.yaml"
        self.start("kube-proxy", [str(self.binaries / "kube-proxy"), f"--config={config}"])

    def start_kubelet(self) -> None:
        labels = {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.spec.card_model,
            "nvidia.com/gpu.memory": str(self.spec.card_memory_mib),
        }
        kubeconfig = self.layout.pki / f"{self.name}.kubeconfig"
        told = ",".join(f"{key}={value}" for key, value in labels.items())
        self.start_kubelet_as(self.name, kubeconfig, f"--node-labels={told}")

    def start_kubelet_as(self, name: str, kubeconfig: Path, *flags: str) -> None:
        """Start the kubelet of the Node with this name."""
        argv = [
            str(self.binaries / "kubelet"),
            f"--config={self.files.config / 'kubelet.yaml'}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={name}",
            f"--node-ip={node_ip(self.number)}",
            *flags,
        ]
        self.start("kubelet", argv)

    def wait_for_kubelet(self) -> None:
        """Wait until the kubelet says that it is healthy."""
        name = self.process("kubelet")
        holder = self.holder
        wait_until(
            f"{name} being healthy",
            lambda: netns.healthy(holder, KUBELET_HEALTH_PORT),
            self.processes,
            [name],
        )

    def end(self, program: str, number: signal.Signals) -> None:
        """End one of the node's programs by this signal; it has ended on return."""
        name = self.process(program)
        process = self.processes.get(name)
        if process is not None:
            process.signal(number)
            self.processes.stop(name, grace=30)

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,
        check: bool = True,
        timeout: float = COMMAND_LIMIT,
    ) -> Done:
        """Run a command on the node and wait for it."""
        return command(self.entering(argv), input, check, timeout)

    def load_image(self, archive: Path) -> None:
        """Import a docker archive into the store of the node's container runtime."""
        ctr = [str(self.binaries / "ctr"), "--namespace=k8s.io", "images", "import", "-"]
        argv = self.entering(crio.importing() if self.spec.cri_o else ctr)
        with archive.open("rb") as file:
            done = subprocess.run(
                argv,
                stdin=file,
                capture_output=True,
                text=True,
                timeout=COMMAND_LIMIT,
                check=False,
            )
        if done.returncode != 0:
            raise CommandFailed(argv, done.returncode, done.stdout, done.stderr)

    def entering(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the node's namespaces, with its programs at hand."""
        target = ["nsenter", "--target", str(self.holder.pid), "--wd=/"]
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        return [*target, *namespaces, "--", "env", f"PATH={self._path()}", *argv]


def visible(layout: Layout, binaries: Path) -> list[Path]:
    """The host's folders that programs on a node use at their own path."""
    programs = {program.resolve().parent for program in binaries.iterdir()}
    python = [Path(sys.prefix), Path(sys.base_prefix)]
    return [layout.dir, binaries, *programs, *python, REPOSITORY]


def machine() -> Machine:
    """The properties of this machine on which the nodes' configuration depends."""
    return Machine(
        may_lower_oom_score=bool(_effective_capabilities() >> CAP_SYS_RESOURCE & 1),
        bridge_filter=network.has_bridge_filter(),
    )


def _effective_capabilities() -> int:
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)
