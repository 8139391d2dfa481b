"""A cluster that is up, as its users (tests, demo, benchmarks) see it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import CommandFailed, NotSupported

COMMAND_LIMIT = 300.0  # seconds
TOOLS = ("kubectl", "helm")

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Node:
    """A node. `root` is where the host sees its file system, `simgpu_dir` its simulated cards."""

    name: str
    ip: str
    root: Path
    simgpu_dir: Path

    def path(self, inside: str) -> Path:
        """The host's path of a file on the node: path("/var/lib/mizar")."""
        return self.root / inside.lstrip("/")


class Cluster:
    """Any cluster: what its kubeconfig allows. Work on nodes is for kinds that have access to them.

    Commands raise CommandFailed when they end with an error, unless `check` is false.
    """

    def __init__(self, name: str, kubeconfig: Path, tools: Mapping[str, Path]) -> None:
        """`tools` says where the programs kubectl and helm are."""
        self.name = name
        self.kubeconfig = kubeconfig
        self._tools = tools

    @property
    def nodes(self) -> list[Node]:
        """The nodes that can be worked on."""
        return []

    @property
    def logs_dir(self) -> Path:
        """Where the components' logs are."""
        raise self._no_access("its components' logs")

    def kubectl(
        self,
        *args: str,
        input: str | None = None,
        check: bool = True,
        timeout: float = COMMAND_LIMIT,
    ) -> Done:
        """Run kubectl on the cluster."""
        return self._tool("kubectl", args, input, check, timeout)

    def helm(
        self,
        *args: str,
        input: str | None = None,
        check: bool = True,
        timeout: float = COMMAND_LIMIT,
    ) -> Done:
        """Run helm on the cluster."""
        return self._tool("helm", args, input, check, timeout)

    def tool(self, name: str) -> Path:
        """The program kubectl or helm."""
        return self._tools[name]

    def environment(self) -> dict[str, str]:
        """The environment in which kubectl and helm use this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def _tool(
        self, name: str, args: Sequence[str], text: str | None, check: bool, timeout: float
    ) -> Done:
        return command([str(self.tool(name)), *args], text, check, timeout, self.environment())

    def load_image(self, archive: Path, node: str | None = None) -> None:
        """Import the images of a docker archive on one node, or on all."""
        raise self._no_access("loading images")

    def exec_on_node(
        self,
        node: str,
        argv: Sequence[str],
        input: str | None = None,
        check: bool = True,
        timeout: float = COMMAND_LIMIT,
    ) -> Done:
        """Run a command on a node itself, in its namespaces."""
        raise self._no_access("running commands on nodes")

    def restart_kubelet(self, node: str) -> None:
        """End the kubelet by SIGTERM and start it again."""
        raise self._no_access("restarting kubelets")

    def kill_kubelet(self, node: str) -> None:
        """End the kubelet by SIGKILL; it stays down until start_kubelet."""
        raise self._no_access("killing kubelets")

    def start_kubelet(self, node: str) -> None:
        """Start the kubelet, and wait until it answers."""
        raise self._no_access("starting kubelets")

    def kill_containerd(self, node: str) -> None:
        """End containerd, or the CRI-O in its place, by SIGKILL, with its containers left running;
        it stays down until start_containerd."""
        raise self._no_access("killing containerd")

    def start_containerd(self, node: str) -> None:
        """Start containerd, or the CRI-O in its place, and wait until it answers."""
        raise self._no_access("starting containerd")

    def kill_allocator(self, node: str) -> None:
        """End NVIDIA's device plugin or DRA driver by SIGKILL; it stays down until
        start_allocator."""
        raise self._no_access("killing device plugins and DRA drivers")

    def start_allocator(self, node: str) -> None:
        """Start NVIDIA's device plugin or DRA driver, which then registers with the kubelet."""
        raise self._no_access("starting device plugins and DRA drivers")

    def power_off(self, node: str) -> None:
        """End all of a node's programs at once, and remove what a machine loses without power. The
        node stays off until power_on. It cannot be the first node, which has the control plane."""
        raise self._no_access("switching nodes off")

    def power_on(self, node: str) -> None:
        """Start the node's programs again, and wait until its kubelet answers."""
        raise self._no_access("switching nodes on")

    def kill_api_server(self) -> None:
        """End the API server by SIGKILL; it stays down until start_api_server."""
        raise self._no_access("killing the API server")

    def start_api_server(self) -> None:
        """Start the API server that was killed, and wait until it is ready."""
        raise self._no_access("starting the API server")

    def down(self) -> None:
        """Remove the cluster."""
        raise self._no_access("taking it down")

    def _no_access(self, what: str) -> NotSupported:
        return NotSupported(
            f"cluster {self.name} is known by its kubeconfig only: {what} needs a local cluster"
        )


def command(
    argv: list[str],
    text: str | None,
    check: bool,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run a command with its output captured; CommandFailed if it fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            env=env,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(argv, 124, "", f"it took longer than {timeout:.0f} s") from error
    if check and done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stdout, done.stderr)
    return done
