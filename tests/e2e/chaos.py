"""Breaks a cluster at random, and mends it: programs are killed, cards fail, users come and go.

Faults that last (a program that is down, a failed card) are kept in `down`, each with the function
that ends it. All random choices come from one seed. What else happens at the same time differs from
run to run, so a seed repeats the faults but not the moments at which they meet the cluster.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster import Cluster
from cluster.cluster import Node
from cluster.errors import CommandFailed
from e2e.components import WORKLOADS, component_pods, delete_component, kill_containers
from mizar_nodeagent.card_health import REPAIRED
from simgpu.machine import Machine
from support.kube import Kube
from support.objects import SHARE_PODS
from support.waiting import wait_for

PAUSE_S = (0.1, 2.0)
"""Seconds between two faults: at least, and at most."""
RESTARTS = 2
"""A pod whose containers were started again more often than this is replaced instead of killed: the
kubelet would wait minutes before the next start."""
ORDER = ("API server", "containerd", "kubelet", "card")
"""The order of mending: a kubelet needs containerd, and a card needs the agent."""

Mend = Callable[[], None]


@dataclass(frozen=True)
class Users:
    """A Deployment of at most `most` pods, all of which the cluster has room for. `shares`: whether
    the pods share cards instead of holding whole ones."""

    tenant: str
    name: str
    most: int
    shares: bool = True


@dataclass
class Chaos:
    """Causes faults on a cluster on which these users run."""

    kube: Kube
    cluster: Cluster
    users: list[Users]
    random: random.Random
    down: dict[str, Mend] = field(default_factory=dict)

    def storm(self, seconds: float) -> None:
        """Cause one fault after the other for so long; some of them last until `calm`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            strike = self.random.choice(self._strikes())
            try:
                self._tell(strike() or "")
            except CommandFailed as refused:
                # The API server or containerd is away, or what was to be killed has just ended.
                self._tell(f"not done: {str(refused).splitlines()[-1]}")
            if self.down and self.random.random() < 0.3:
                self._mend(self._next())
            time.sleep(self.random.uniform(*PAUSE_S))

    def calm(self) -> None:
        """End every fault that lasts."""
        while self.down:
            self._mend(self._next())

    def _strikes(self) -> list[Callable[[], str | None]]:
        """The choices for the next fault. Users come and go as often as programs die; among several
        of a kind, each is as likely as the others."""
        churn = [self._scale, self._delete_pods, self._restart_users]
        return [*churn, *churn, self._kill_component, self._replace_component, *self._lasting()]

    def _lasting(self) -> list[Callable[[], str | None]]:
        return [self._kill_api_server, self._kill_containerd, self._kill_kubelet, self._fail_card]

    def _scale(self) -> str:
        users, to = self.random.choice(self.users), self.random.random()
        replicas = round(to * users.most)
        self._kubectl(users, "scale", f"deployment/{users.name}", f"--replicas={replicas}")
        return f"{users.tenant} has {replicas} pods from now on"

    def _delete_pods(self) -> str:
        """Half of a tenant's pods at once."""
        users = self.random.choice(self.users)
        names = [one["metadata"]["name"] for one in self.kube.all("pods", users.tenant, SHARE_PODS)]
        chosen = self.random.sample(names, (len(names) + 1) // 2)
        if chosen:
            self._kubectl(users, "delete", "pods", *chosen, "--wait=false", "--ignore-not-found")
        return f"{len(chosen)} of {users.tenant}'s pods are deleted"

    def _restart_users(self) -> str:
        users = self.random.choice(self.users)
        self._kubectl(users, "rollout", "restart", f"deployment/{users.name}")
        return f"{users.tenant}'s pods are replaced"

    def _kill_component(self) -> str:
        component = self.random.choice(list(WORKLOADS))
        found = component_pods(self.kube, component)
        pods = [one for one in found if one["status"].get("containerStatuses")]
        if not pods:
            return f"{component} has no container to kill just now"
        pod = self.random.choice(pods)
        name = pod["metadata"]["name"]
        if sum(one["restartCount"] for one in pod["status"]["containerStatuses"]) > RESTARTS:
            self.kube.delete("pod", name, pod["metadata"]["namespace"], "--wait=false")
            return f"{name} is replaced"
        kill_containers(self.cluster, pod)
        return f"{name} is killed"

    def _replace_component(self) -> str:
        component = self.random.choice(list(WORKLOADS))
        delete_component(self.kube, component)
        return f"all pods of {component} are deleted by force"

    def _kill_api_server(self) -> str | None:
        return self._bring_down(
            "API server", self.cluster.kill_api_server, self.cluster.start_api_server
        )

    def _kill_containerd(self) -> str | None:
        name = self._node().name
        return self._bring_down(
            f"containerd of {name}",
            lambda: self.cluster.kill_containerd(name),
            lambda: self.cluster.start_containerd(name),
        )

    def _kill_kubelet(self) -> str | None:
        name = self._node().name
        return self._bring_down(
            f"kubelet of {name}",
            lambda: self.cluster.kill_kubelet(name),
            lambda: self.cluster.start_kubelet(name),
        )

    def _fail_card(self) -> str | None:
        """Fail one card at a time: it drops off the bus, or reports an XID until somebody repairs
        it."""
        if any(name.startswith("card") for name in self.down):
            return None
        node, xid = self._node(), self.random.choice((0, 79))
        with Machine(node.simgpu_dir) as machine:
            uuid = self.random.choice(machine.cards).uuid
        return self._bring_down(
            f"card {uuid} {f'by XID {xid}' if xid else 'off the bus'}",
            lambda: fail_card(node, uuid, xid),
            lambda: repair_card(node, uuid),
        )

    def _bring_down(self, what: str, strike: Mend, mend: Mend) -> str | None:
        if what in self.down:
            return None
        self.down[what] = mend
        strike()
        return f"{what} is down"

    def _next(self) -> str:
        return min(self.down, key=lambda what: ORDER.index(_kind(what)))

    def _mend(self, what: str) -> None:
        self.down.pop(what)()
        self._tell(f"{what} is back")

    def _node(self) -> Node:
        return self.random.choice(self.cluster.nodes)

    def _kubectl(self, users: Users, *arguments: str) -> None:
        self.kube.run(*arguments, f"--namespace={users.tenant}")

    def _tell(self, what: str) -> None:
        if what:
            print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def fail_card(node: Node, uuid: str, xid: int) -> None:
    """The card reports this XID; with 0 it drops off the bus."""
    with Machine(node.simgpu_dir) as machine:
        if xid:
            machine.set_health(uuid, xid)
        else:
            machine.remove(uuid)


def repair_card(node: Node, uuid: str) -> None:
    """Make the card healthy again and tell the agent, which remembers faults across restarts.
    Returns at once, also where no agent runs: `await_repairs` waits for it."""
    with Machine(node.simgpu_dir) as machine:
        machine.restore(uuid)
    (node.path("/var/lib/mizar") / f"{REPAIRED}{uuid}").touch()


def await_repairs(nodes: list[Node]) -> None:
    """Wait until the agents have taken note of all repairs."""
    for node in nodes:
        folder = node.path("/var/lib/mizar")
        wait_for(f"the agent of {node.name}", lambda f=folder: not list(f.glob(f"{REPAIRED}*")))  # type: ignore[misc]


def _kind(what: str) -> str:
    return next(kind for kind in ORDER if what.startswith(kind))
