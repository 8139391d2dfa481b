"""Clusters come up whole or not at all, and nothing of them is left, whichever of their programs is
killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import simgpu
from cluster import Cluster, ClusterSpec, cgroups, cleanup, control_plane, state, waiting
from cluster.binaries.progress import Progress
from cluster.credentials import Credentials
from cluster.errors import AlreadyUp, ComponentFailed, NotUp
from cluster.images import CUDA_SAMPLE
from cluster.layout import Layout
from cluster.local_provider import LocalProvider
from cluster.processes import Processes, wait_gone
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HOST_FOLDERS = ("/etc", "/opt", "/run", "/usr/libexec", "/usr/local", "/var/lib", "/var/log")
SILENT = Progress.silent()
LIMIT = 240.0
SERVER = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
while (my $client = $server->accept) { print $client "hello\\n"; close $client }
"""


@dataclass(frozen=True)
class Host:
    """What of the host a cluster could change, apart from things that carry the cluster's name."""

    links: frozenset[str]
    files: frozenset[str]
    sysctls: tuple[str, ...]

    @classmethod
    def now(cls) -> Host:
        sysctls = ("net/ipv4/ip_forward", "kernel/panic", "vm/overcommit_memory")
        return cls(
            frozenset(one.name for one in Path("/sys/class/net").iterdir()),
            frozenset(str(one) for folder in HOST_FOLDERS for one in Path(folder).glob("*")),
            tuple((Path("/proc/sys") / one).read_text() for one in sysctls),
        )


def namespaces(layout: Layout) -> list[Path]:
    """The namespaces that the cluster's nodes have and the host does not."""
    kinds = ("mnt", "net", "pid", "uts", "ipc")
    holders = [one for name, one in Processes(layout).all().items() if state.is_holder(name)]
    paths = [Path(f"/proc/{one.pid}/ns/{kind}") for one in holders for kind in kinds]
    # A process that was just started may still be in the host's namespaces.
    return [
        path for path in paths if path.readlink() != Path("/proc/self/ns", path.name).readlink()
    ]


def inhabitants(spaces: set[str]) -> list[str]:
    """The processes on this machine that are in one of these namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                here = {str(one.readlink()) for one in (entry / "ns").iterdir()}
                if here & spaces:
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:  # the process has ended
                continue
    return found


def mounts_of(layout: Layout) -> list[str]:
    """The mounts below the cluster's folder, seen from any process on this machine."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "mountinfo").read_text().splitlines()
            except OSError:
                continue
            found |= {line for line in lines if f"{layout.dir}/" in line}
    return sorted(found)


@dataclass
class Traces:
    """Watches a cluster, to tell afterwards what it has left."""

    layout: Layout
    before: Host
    spaces: set[str] = field(default_factory=set)
    held: ExitStack = field(default_factory=ExitStack)

    def watch(self) -> None:
        """Remember the namespaces that the cluster has now, and keep them open, so that no others
        get their numbers."""
        for path in namespaces(self.layout):
            self.spaces.add(str(path.readlink()))
            self.held.enter_context(path.open())

    def assert_none(self) -> None:
        """Fail, naming them, if there are traces."""
        assert not self.layout.dir.exists()
        assert cgroups.existing(self.layout.name) == []
        assert cleanup.leftovers(self.layout) == []
        assert inhabitants(self.spaces) == []
        assert mounts_of(self.layout) == []
        assert Host.now() == self.before


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> Iterator[Traces]:
    """Traces of a cluster that the test makes; the cluster is removed after the test."""
    layout = Layout(f"life-{os.getpid()}")
    traces = Traces(layout, Host.now())
    with traces.held:
        yield traces
    LocalProvider().down(layout.name, SILENT)


def start_up(layout: Layout, *options: str) -> subprocess.Popen[str]:
    """`up`, started as a user starts it."""
    argv = [sys.executable, "-m", "cluster", "up", f"--name={layout.name}", "--no-mizar", *options]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(up: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and all that it printed."""
    said, _ = up.communicate(timeout=LIMIT)
    return up.returncode, said


def run_cli(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the command line."""
    argv = [sys.executable, "-m", "cluster", *arguments]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=LIMIT, check=False)
    return done.returncode, done.stdout + done.stderr


def reached(layout: Layout, process: str) -> Callable[[], bool]:
    """Whether `up` has come far enough to start this process."""
    return lambda: (layout.processes / f"{process}.json").exists()


STAGES = ["node-1-holder", "kube-apiserver", "forwarder", "node-1-kubelet"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(
    traces: Traces, stage: str, number: signal.Signals
) -> None:
    up = start_up(traces.layout)
    wait_for(stage, reached(traces.layout, stage), interval=0.005)
    traces.watch()
    up.send_signal(number)
    up.send_signal(signal.SIGINT)  # an impatient user
    status, said = finish(up)
    assert status == 130, said
    assert "interrupted" in said
    traces.assert_none()


@pytest.mark.parametrize("stage", STAGES)
def test_down_cleans_up_after_a_killed_up(traces: Traces, stage: str) -> None:
    up = start_up(traces.layout)
    wait_for(stage, reached(traces.layout, stage), interval=0.005)
    traces.watch()
    up.kill()
    finish(up)
    _, said = run_cli("status", f"--name={traces.layout.name}")
    assert "not up, but it left" in said
    assert run_cli("down", f"--name={traces.layout.name}")[0] == 0
    traces.assert_none()


def test_up_clears_the_remains_of_a_killed_up_away(traces: Traces) -> None:
    up = start_up(traces.layout)
    wait_for("the kubelet", reached(traces.layout, "node-1-kubelet"))
    traces.watch()
    up.kill()
    finish(up)
    status, said = finish(start_up(traces.layout))
    assert status == 0, said
    assert "removing cluster" in said
    assert f"export KUBECONFIG={traces.layout.kubeconfig}" in said
    assert inhabitants(traces.spaces) == []
    traces.watch()
    assert run_cli("down", f"--name={traces.layout.name}")[0] == 0
    traces.assert_none()


def test_a_cluster_whose_parts_were_killed_goes_without_a_trace(traces: Traces) -> None:
    spec = ClusterSpec(name=traces.layout.name, nodes=2, mizar=False)
    cluster = LocalProvider().up(spec, SILENT)
    traces.watch()
    assert len(traces.spaces) == 10
    assert inhabitants(traces.spaces)
    parts = list(Processes(traces.layout).all().values())
    for process in parts:
        process.signal(signal.SIGKILL)
    assert wait_gone(parts, LIMIT)
    with pytest.raises(NotUp):
        LocalProvider().get(spec.name)
    cluster.down()
    traces.assert_none()
    assert not LocalProvider().down(spec.name, SILENT)


def test_a_name_is_taken_by_one_cluster_only(traces: Traces) -> None:
    spec = ClusterSpec(name=traces.layout.name, mizar=False)
    up = start_up(traces.layout)
    wait_for("the first process", reached(traces.layout, "node-1-holder"), interval=0.005)
    with pytest.raises(AlreadyUp, match="is being made"):
        LocalProvider().up(spec, SILENT)
    status, said = run_cli("down", f"--name={spec.name}")
    assert status == 1 and "is being made" in said
    status, said = finish(up)
    assert status == 0, said
    with pytest.raises(AlreadyUp, match="is up already"):
        LocalProvider().up(spec, SILENT)
    assert LocalProvider().get(spec.name).kubectl("get", "nodes").returncode == 0
    traces.watch()
    LocalProvider().down(spec.name, SILENT)
    traces.assert_none()


def test_a_component_that_dies_at_its_start_is_named_with_its_last_words(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "scheduler", lambda _: ["--no-such-option"])
    with pytest.raises(ComponentFailed) as failure:
        LocalProvider().up(ClusterSpec(name=traces.layout.name, mizar=False), SILENT)
    assert "kube-scheduler has ended" in str(failure.value)
    assert "unknown flag: --no-such-option" in str(failure.value)
    traces.assert_none()


def test_a_component_that_hangs_is_given_up_on(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LIMIT", 3.0)
    right = control_plane.api_server

    def waits_for_ever(credentials: Credentials) -> list[str]:
        """The command of an API server whose etcd does not exist, so that it waits for ever."""
        return [one.replace(control_plane.ETCD, "http://127.0.0.1:1") for one in right(credentials)]

    monkeypatch.setattr(control_plane, "api_server", waits_for_ever)
    with pytest.raises(ComponentFailed, match="did not happen within 3 s"):
        LocalProvider().up(ClusterSpec(name=traces.layout.name, mizar=False), SILENT)
    traces.assert_none()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Cluster]]:
    """Two clusters at once, the first with two nodes, both with the sample image."""
    names = [f"pair-{which}-{os.getpid()}" for which in "ab"]
    try:
        specs = [
            ClusterSpec(name, nodes, mizar=False) for name, nodes in zip(names, (2, 1), strict=True)
        ]
        yield [LocalProvider().up(spec, Progress(), [CUDA_SAMPLE]) for spec in specs]
    finally:
        for name in names:
            LocalProvider().down(name, SILENT)


def test_pods_reach_each_other_across_nodes(pair: list[Cluster]) -> None:
    kube = Kube(pair[0])
    nodes = [node.name for node in pair[0].nodes]
    clients = {f"client-{node}": node for node in nodes}
    kube.apply(_pod("web", nodes[0], ["perl", "-e", SERVER]), _service("web"))
    kube.apply(*(_pod(name, node, ["sleep", "infinity"]) for name, node in clients.items()))
    kube.wait_running("default", "web", *clients)
    service = kube.get("service", "web", "default")
    assert service is not None
    ask = ["timeout", "9", "bash", "-c", f"cat < /dev/tcp/{service['spec']['clusterIP']}/80"]
    for client in clients:
        answer = partial(kube.exec, "default", client, *ask)
        wait_for("an answer", partial(_gives, answer, (0, "hello\n")))


def test_nodes_have_cards_of_their_own(pair: list[Cluster]) -> None:
    machines = [simgpu.Machine(node.simgpu_dir) for cluster in pair for node in cluster.nodes]
    uuids = [card.uuid for machine in machines for card in machine.cards]
    assert len(uuids) == len(set(uuids)) == 6
    for cluster in pair:
        for node in Kube(cluster).all("nodes"):
            assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"


def test_clusters_do_not_take_each_others_pods_for_orphans(pair: list[Cluster]) -> None:
    kubes = [Kube(cluster) for cluster in pair]
    for cluster, kube in zip(pair, kubes, strict=True):
        for node in cluster.nodes:
            kube.apply(_pod(f"stays-{node.name}", node.name, ["sleep", "infinity"]))
    for cluster, kube in zip(pair, kubes, strict=True):
        kube.wait_running("default", *(f"stays-{node.name}" for node in cluster.nodes))
    for cluster in pair:
        for node in cluster.nodes:
            cluster.restart_kubelet(node.name)
    time.sleep(5)  # the kubelets look for orphans every two seconds
    for kube in kubes:
        names = [pod["metadata"]["name"] for pod in kube.all("pods", "default")]
        kube.wait_running("default", *names)
        for pod in kube.all("pods", "default"):
            (container,) = pod["status"]["containerStatuses"]
            assert container["restartCount"] == 0, pod["metadata"]["name"]


def test_a_node_sees_its_own_processes_only(pair: list[Cluster]) -> None:
    for cluster in pair:
        for node in cluster.nodes:
            seen = cluster.exec_on_node(node.name, ["ps", "-e", "-o", "args"]).stdout
            assert seen.count("/kubelet ") == 1


def _gives(ask: Callable[[], object], wanted: object) -> bool:
    return ask() == wanted


def _pod(name: str, node: str, command: list[str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": CUDA_SAMPLE, "command": command}],
        },
    }


def _service(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
