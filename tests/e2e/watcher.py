"""Looks at the nodes ten times a second, beside all end-to-end tests, for two owners of one thing.

It asks neither Mizar nor the API server: kubelets (podresources) tell what each pod was given, and
the folder of containerd, or of the CRI-O in its place, and /proc show which containers live and
what cards they have.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc

from cluster import Cluster
from cluster.cluster import Node
from mizar_nodeagent.card_health import REPAIRED, SIGNS
from mizar_nodeagent.proto import podresources_pb2 as pb
from mizar_nodeagent.proto import podresources_pb2_grpc as rpc
from simgpu import dra_devices
from simgpu.dra_devices import DRIVER, devices
from simgpu.machine import Machine
from support.waiting import wait_for
from support.watcher_faults import WHOLE_CARDS, Held, Look, Seen, Withdrawals, faults

EVERY_S = 0.1
KUBELET_LIMIT_S = 2.0
KUBELET_STARTS_S = 120.0
"""Seconds for which a kubelet that has just started may not know all running pods: it asks the API
server for them, which may be away."""
CARD_RECOVERS_S = 30.0
"""Seconds that the agent, the kubelet and NVIDIA's plugin have to report that a card is well
again."""
CALM_S = max(sign.calm for sign in SIGNS)
"""Seconds for which a card must show no sign of a fault before it counts as well."""
MONITOR = "monitor"
"""The name of ResourceClaims with adminAccess, which the kubelet does not tell from others, and of
their pods: they have their cards beside other claims."""
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
CONTAINERS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
CRIO_CONTAINERS = "/run/containers/storage/overlay-containers"
"""Where containerd and CRI-O keep the files of running containers, a folder each."""

_CONTAINERD_MARKS = tuple(
    f"io.kubernetes.cri.{one}" for one in ("sandbox-namespace", "sandbox-name", "container-name")
)
_CRIO_MARKS = tuple(
    f"io.kubernetes.{one}" for one in ("pod.namespace", "pod.name", "container.name")
)
"""Annotations with a container's namespace, pod and name."""

LOOKS_PER_S = 1.0
"""Looks a second. Where kubelets answer, a lower average shows that the watcher did not look for
some of the time."""
SHORT_S = 10.0
"""Seconds below which an average says nothing."""

working: list[Watcher] = []
reports: list[str] = []
"""What each watcher that has ended did."""

# Programs that manage cards, and therefore have all of them.
SYSTEM = frozenset({"kube-system", "mizar-system"})


@dataclass
class Watcher:
    """Notes faults that two looks in a row show on a cluster's nodes: a single look may have been
    taken while something moved."""

    nodes: list[NodeWatch]
    looks: int = 0
    blind: int = 0
    most_seen: int = 0
    longest_gap_s: float = 0.0
    blind_s: float = 0.0
    """Looks in which a kubelet gave no answer that could be used."""
    rounds: int = 0
    """Looks in which all kubelets gave one."""
    _found: dict[str, str] = field(default_factory=dict)
    """The faults, each with what was seen when it was noted first."""
    _before: dict[str, frozenset[str]] = field(default_factory=dict)
    _withdrawals: dict[int, Withdrawals] = field(default_factory=lambda: defaultdict(Withdrawals))
    _end: threading.Event = field(default_factory=threading.Event)
    _broken: BaseException | None = None

    def found(self) -> list[str]:
        """The faults since the last call; prints the look that showed each. Raises what ended the
        watcher, if it broke."""
        if self._broken is not None:
            raise self._broken
        found, self._found = self._found, {}
        for fault in sorted(found):
            print(f"{fault}\n{found[fault]}")
        return sorted(found)

    def has_noted(self, words: str) -> bool:
        """Whether one of the faults that the next call of `found` returns contains these words."""
        return any(words in fault for fault in self._found.copy())

    def run(self) -> None:
        """Look until `end` is called."""
        try:
            last = time.monotonic()
            while not self._end.wait(EVERY_S):
                blind = self.blind
                self._round()
                now = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now - last)
                if self.blind == blind:
                    self.rounds += 1
                else:
                    self.blind_s += now - last
                last = now
        except Exception as error:
            self._broken = error

    def check(self, seconds: float) -> None:
        """Assert that it looked all the time, for that many seconds. Raises what ended it, or
        AssertionError where it took too few looks."""
        if self._broken is not None:
            raise self._broken
        sighted = seconds - self.blind_s
        assert sighted < SHORT_S or self.rounds >= LOOKS_PER_S * sighted, (
            f"the watcher looked {self.rounds} times in {sighted:.0f} s"
        )

    def end(self) -> None:
        """Ask `run` to return."""
        self._end.set()

    def _round(self) -> None:
        for number, node in enumerate(self.nodes):
            look, withdrawals = node.look(), self._withdrawals[number]
            if look is None:
                self.blind += 1
                withdrawals.forget()
                continue
            self.looks += 1
            self.most_seen = max(self.most_seen, len(look.seen))
            wrong = faults(look) | withdrawals.faults(look, time.monotonic())
            for fault in wrong & self._before.get(look.node, frozenset()):
                self._found.setdefault(fault, f"{time.strftime('%H:%M:%S')} {look}")
            self._before[look.node] = wrong

    def __str__(self) -> str:
        return (
            f"{self.looks} looks at {len(self.nodes)} nodes, "
            f"at most {self.longest_gap_s:.1f} s apart, "
            f"at up to {self.most_seen} containers with cards; "
            f"{self.blind} times a kubelet did not answer or had just started"
        )


@contextmanager
def watching(cluster: Cluster) -> Iterator[Watcher]:
    """A watcher at work on the cluster's nodes, in a thread. Raises at the end where it did not
    look all the time."""
    nodes = [NodeWatch(node) for node in cluster.nodes]
    watcher = Watcher(nodes)
    thread = threading.Thread(target=watcher.run, name=f"watcher of {cluster.name}")
    began = time.monotonic()
    thread.start()
    working.append(watcher)
    try:
        yield watcher
    finally:
        working.remove(watcher)
        watcher.end()
        lasted = time.monotonic() - began
        thread.join()
        reports.append(f"{cluster.name}: {watcher}")
        for node in nodes:
            node.close()
    watcher.check(lasted)


def wait_noted(words: str) -> None:
    """Wait until a watcher has noted a fault with these words: two looks may take seconds where the
    machine is busy."""
    wait_for(f"{words} to be noted", lambda: any(one.has_noted(words) for one in working))


class NodeWatch:
    """Takes looks at one node of a local cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._channel = grpc.insecure_channel(
            f"unix://{node.path(SOCKET)}",
            options=(
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.max_receive_message_length", 16 << 20),
            ),
        )
        self._kubelet = rpc.PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
        self._machine = Machine(node.simgpu_dir)
        self._claimed_cards = ClaimedCards()
        self._failed_until: dict[str, float] = {}
        self._known: dict[str, Container] = {}
        self._start = (0, 0)
        self._new_until = 0.0
        self._starts_until = 0.0

    def look(self) -> Look | None:
        """What the node shows now; None where its kubelet doesn't answer, or doesn't know all pods
        yet."""
        before = self._living()
        self._note_start()
        try:
            held = self._kubelet.List(pb.ListPodResourcesRequest(), timeout=KUBELET_LIMIT_S)
            offered = self._kubelet.GetAllocatableResources(
                pb.AllocatableResourcesRequest(), timeout=KUBELET_LIMIT_S
            )
        except grpc.RpcError:
            return None
        alive = [seen for container, seen in before if container.lives()]
        if self._is_starting({f"{pod.namespace}/{pod.name}" for pod in held.pod_resources}):
            return None
        return Look(
            self._node.name,
            _held(held, self._claimed_cards.of(held, devices(self._machine))),
            tuple(alive),
            _offered(offered),
            self._failed(),
            self._serving(),
            new_kubelet=time.monotonic() < self._new_until,
        )

    def close(self) -> None:
        """End the connections to the kubelet and to the cards."""
        self._channel.close()
        self._machine.close()

    def _serving(self) -> frozenset[str]:
        """The agents' processes, and a number that changes with each start of the kubelet; empty
        without an agent."""
        agents = {one.identity for one in self._known.values() if one.is_agent and one.lives()}
        return frozenset(agents | {f"kubelet {self._start}"}) if agents else frozenset()

    def _failed(self) -> frozenset[str]:
        """The cards that have failed, or had until just now. A card that is well again counts as
        failed until the agent, which may be dead, has read that it was repaired."""
        now, noted = time.monotonic(), self._node.path("/var/lib/mizar")
        for card in self._machine.health():
            if not card.healthy or (noted / f"{REPAIRED}{card.uuid}").exists():
                self._note_failed(card.uuid, now + CARD_RECOVERS_S)
            if card.ailing:
                self._note_failed(card.uuid, now + CALM_S + CARD_RECOVERS_S)
        return frozenset(uuid for uuid, until in self._failed_until.items() if now < until)

    def _note_failed(self, uuid: str, until: float) -> None:
        self._failed_until[uuid] = max(until, self._failed_until.get(uuid, until))

    def _note_start(self) -> None:
        """A kubelet that starts makes its socket anew."""
        try:
            socket = self._node.path(SOCKET).stat()
        except OSError:
            return
        if (start := (socket.st_ino, socket.st_ctime_ns)) != self._start:
            self._start, self._new_until = start, time.monotonic() + KUBELET_STARTS_S
            self._starts_until = self._new_until

    def _is_starting(self, known: set[str]) -> bool:
        """Whether the kubelet has just started and has not heard of all its pods yet, shadow pods
        among them: it learns of one after the other."""
        if time.monotonic() >= self._starts_until:
            return False
        if all(one.pod in known for one in self._containers()):
            self._starts_until = 0.0
            return False
        return True

    def _living(self) -> list[tuple[Container, Seen]]:
        """The containers of users that have cards."""
        found = []
        usable = [one for one in self._machine.health() if not one.divided]
        for container in self._containers():
            if container.pod.endswith(f"/{MONITOR}"):
                continue
            dev = container.files("dev")
            try:
                names = {str(path.relative_to(dev)) for path in dev.glob("**/nvidia*[0-9]")}
            except OSError:
                continue
            if cards := frozenset(one.uuid for one in usable if names.issuperset(one.nodes)):
                found.append((container, Seen(container.pod, container.name, cards)))
        return found

    def _containers(self) -> list[Container]:
        """The living containers of users' pods, once they have a file system of their own."""
        folders = container_folders(self._node)
        known = {id: one for id, one in self._known.items() if id in folders and one.lives()}
        for id in folders.keys() - known.keys():
            if (container := read_container(folders[id], self._node)) is not None:
                known[id] = container
        self._known = known
        return [one for one in known.values() if one.is_users]


@dataclass(frozen=True)
class Container:
    """A container and its first process: its folder in the node's /proc, and when it began."""

    pod: str
    name: str
    process: Path
    began: str

    @property
    def is_users(self) -> bool:
        """Whether it is a container of a pod that does not manage cards."""
        return bool(self.name) and self.pod.partition("/")[0] not in SYSTEM

    @property
    def is_agent(self) -> bool:
        """Whether it is a container of the node agent."""
        return self.name == "nodeagent" and self.pod.startswith("mizar-system/")

    @property
    def identity(self) -> str:
        """A value that no other container has, not even a later one of the same pod."""
        return f"{self.pod} {self.process.name} {self.began}"

    def lives(self) -> bool:
        """Whether the process still runs."""
        return _began(self.process) == self.began

    def files(self, inside: str) -> Path:
        """Where the host sees a folder of the container."""
        return self.process / "root" / inside


def container_folders(node: Node) -> dict[str, Path]:
    """The folders with the files of the node's containers, by the runtime's ID of each."""
    found: dict[str, Path] = {}
    for folder, inside in ((CONTAINERS, ""), (CRIO_CONTAINERS, "userdata")):
        with suppress(OSError):
            found |= {one.name: one / inside for one in node.path(folder).iterdir()}
    return found


def read_container(folder: Path, node: Node) -> Container | None:
    """The container of one of the runtime's folders; None where it is being made, or has ended."""
    file = folder / ("pidfile" if folder.name == "userdata" else "init.pid")
    try:
        process = node.path(f"/proc/{file.read_text()}")
        marks = json.loads((folder / "config.json").read_text()).get("annotations", {})
        if (process / "root").samefile(node.root):
            return None  # The process is still the runtime, which sees the whole node.
    except (OSError, ValueError):
        return None
    namespace, pod, name = _CRIO_MARKS if folder.name == "userdata" else _CONTAINERD_MARKS
    full = f"{marks.get(namespace)}/{marks.get(pod)}"
    began = _began(process)
    return Container(full, marks.get(name, ""), process, began) if began else None


def _began(process: Path) -> str:
    """When the process began, in ticks since boot; empty if it has ended."""
    try:
        after_name = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else after_name[19]


def _held(answer: pb.ListPodResourcesResponse, cards: Mapping[Device, str]) -> tuple[Held, ...]:
    """What containers hold, by the kubelet, which lists each device separately. `cards`: the UUIDs
    of the devices of ResourceClaims."""
    together: dict[tuple[str, str, str], set[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for entry in container.devices:
                key = (f"{pod.namespace}/{pod.name}", container.name, entry.resource_name)
                together.setdefault(key, set()).update(entry.device_ids)
            if own := {cards[one] for one in _claimed(container) if one in cards}:
                key = (f"{pod.namespace}/{pod.name}", container.name, WHOLE_CARDS)
                together.setdefault(key, set()).update(own)
    return tuple(Held(*key, frozenset(ids)) for key, ids in together.items())


class ClaimedCards:
    """The UUIDs of the cards that ResourceClaims have. A DRA driver names cards by their minor
    numbers, so a claim's card is the one that had the number when the claim was seen first."""

    def __init__(self) -> None:
        self._known: dict[Device, str] = {}

    def of(
        self, answer: pb.ListPodResourcesResponse, cards: Iterable[dra_devices.Device]
    ) -> Mapping[Device, str]:
        """The cards of the claims in the kubelet's answer."""
        names = {card.name: card.uuid for card in cards}
        containers = (one for pod in answer.pod_resources for one in pod.containers)
        claimed = {device for one in containers for device in _claimed(one)}
        found = {one: self._known.get(one) or names.get(one.name) for one in claimed}
        self._known = {one: uuid for one, uuid in found.items() if uuid}
        return self._known


class Device(NamedTuple):
    """A device of a ResourceClaim."""

    namespace: str
    claim: str
    name: str


def _claimed(container: pb.ContainerResources) -> Iterator[Device]:
    """The cards of the container's ResourceClaims, except those that a MONITOR has."""
    for claim in container.dynamic_resources:
        if claim.claim_name == MONITOR:
            continue
        for device in claim.claim_resources:
            if device.driver_name == DRIVER:
                yield Device(claim.claim_namespace, claim.claim_name, device.device_name)


def _offered(answer: pb.AllocatableResourcesResponse) -> dict[str, frozenset[str]]:
    offered: dict[str, set[str]] = {}
    for entry in answer.devices:
        offered.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return {resource: frozenset(ids) for resource, ids in offered.items()}
