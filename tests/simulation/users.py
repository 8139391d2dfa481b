"""Changes that users, administrators and failing machines make to the cluster, one at a time, drawn
at random."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from mizar_core.names import shadow_name
from mizar_kube.kinds import GPU_QUOTA, NODE, POD, SHADOW_POD, Object
from simulation.administrators import Administrators
from simulation.cluster import Cluster
from simulation.pools import SIZES, Pools
from stateful.model import is_spot

NAMESPACES = ("team-a", "team-b")
NODES = ("n1", "n2")


class Users:
    """Users and administrators. `told` hears of what they do, for the trace."""

    def __init__(self, cluster: Cluster, random: Random, told: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._random = random
        self._told = told
        self._shares = self._spots = self._wholes = 0
        self._administrators = Administrators(cluster, random, NODES, NAMESPACES)
        self._pools = Pools(cluster, random, NAMESPACES, NODES)
        self._by_dra = {node for node in NODES if random.random() < 0.3}
        often: dict[Callable[[], str], int] = {
            self._create_share: 10,
            self._end_share: 6,
            self._create_spot: 6,
            self._end_spot: 2,
            self._lend: 6,
            self._delete_shadow: 2,
            self._take_a_name: 1,
            self._evict: 1,
            self._force_delete: 1,
            self._cordon: 1,
            self._lose_or_add_node: 1,
            self._agent_goes_or_comes: 1,
            self._forbid_or_allow: 1,
            self._create_whole: 2,
            self._end_whole: 2,
            **self._administrators.acts(),
            **self._pools.acts(self._a_namespace),
        }
        # Each schedule leaves some of the acts out, which makes room for rare ones.
        self._does = [
            (one, weight) for one, weight in often.items() if weight > 5 or random.random() < 0.6
        ]

    def prepare(self) -> None:
        """Create the objects that exist at the start."""
        for node in NODES:
            self._cluster.add_node(node, node in self._by_dra)
        if self._by_dra:
            self._cluster.add_class()
        self._cluster.add_rules()
        for what in self._pools.prepare():
            self._told(what)

    async def act(self, times: int, every: float) -> None:
        """So many acts, `every` seconds apart on average."""
        for _ in range(times):
            # Often several at once, then nothing for a while.
            if self._random.random() < 0.7:
                await asyncio.sleep(self._random.expovariate(0.7 / every))
            self._cluster.catch_up()
            do = self._random.choices(*zip(*self._does, strict=True))[0]
            self._told(do())

    def leave(self) -> None:
        """All share pods end, and nothing hinders the operator any more."""
        self._cluster.catch_up()
        self._told("all share pods end")
        for pod in (*self.shares(), *self._wholes_left()):
            self._api.start_delete(pod)

    def relent(self) -> None:
        """End all changes that hinder the operator: agents run, nodes are not cordoned."""
        self._cluster.catch_up()
        self._cluster.down.clear()
        self._api.forbidden.clear()
        for node in NODES:
            self._cluster.cordon(node, False)
        self._administrators.relent()
        self._cluster.wake()

    def shares(self) -> list[Object]:
        """The share pods that no user has ended."""
        return [
            pod
            for pod in self._api.all(POD)
            if pod["metadata"]["name"].startswith("p")
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def _a_namespace(self) -> str:
        """A namespace, and none that is being deleted while there is another."""
        left = [one for one in NAMESPACES if one not in self._api.ending]
        return self._random.choice(left or NAMESPACES)

    # Users.

    def _create_share(self) -> str:
        self._shares += 1
        namespace, name, asked = self._a_namespace(), f"p{self._shares}", dict[str, int]()
        for _ in range(2 if self._random.random() < 0.1 else 1):
            resource, size = self._pools.a_resource(namespace)
            asked[resource] = min(size, self._random.choice((1, 1, 1, 2, 4)))
        self._cluster.add_share_of(namespace, name, asked)
        return f"create {namespace}/{name}: {asked}"

    def _end_share(self) -> str:
        pod = self._one_of(self.shares())
        if pod is None:
            return "nothing to end"
        if pod["status"]["phase"] == "Running" and self._random.random() < 0.5:
            pod["status"]["phase"] = "Succeeded"
            self._api.touch(pod)
            return f"{_name(pod)} succeeds"
        self._api.start_delete(pod)
        return f"delete {_name(pod)}"

    def _create_spot(self) -> str:
        self._spots += 1
        namespace, name = self._a_namespace(), f"b{self._spots}"
        nobody = {"schedulerName": "nobody"} if self._random.random() < 0.3 else {}
        self._cluster.add_spot(namespace, name, self._random.choice((1, 1, 1, 2)), **nobody)
        return f"create spot pod {namespace}/{name}" + " that no scheduler sees" * bool(nobody)

    def _end_spot(self) -> str:
        pod = self._one_of([one for one in self._api.all(POD) if is_spot(one)])
        if pod is None:
            return "no spot pod to end"
        self._api.start_delete(pod)
        return f"delete {_name(pod)}"

    def _create_whole(self) -> str:
        self._wholes += 1
        namespace, name = self._a_namespace(), f"w{self._wholes}"
        self._cluster.add_whole(namespace, name, cards := self._random.choice((1, 1, 2)))
        return f"create {namespace}/{name}: {cards} whole cards"

    def _end_whole(self) -> str:
        pod = self._one_of(self._wholes_left())
        if pod is None:
            return "no pod with whole cards to end"
        self._api.start_delete(pod)
        return f"delete {_name(pod)}"

    def _wholes_left(self) -> list[Object]:
        return [one for one in self._api.all(POD) if one["metadata"]["name"].startswith("w")]

    def _lend(self) -> str:
        node, cards = self._random.choice(NODES), self._random.choice((0, 1, 2, 3))
        self._cluster.lend(node, cards)
        return f"{node} can lend {cards}"

    def _delete_shadow(self) -> str:
        shadow = self._one_of(list(self._api.all(SHADOW_POD)))
        if shadow is None:
            return "no shadow pod to delete"
        self._api.start_delete(shadow)
        return f"delete shadow {_name(shadow)}"

    def _take_a_name(self) -> str:
        """A tenant's pod gets the name that its quota's next shadow pod was to have."""
        quota = self._one_of(list(self._api.all(GPU_QUOTA)))
        if quota is None:
            return "no name to take"
        meta, number = quota["metadata"], quota["status"].get("nextSequence", 0)
        name = shadow_name(meta["uid"], self._random.choice(SIZES), number)
        if self._api.find(POD, name, meta["namespace"]) is None:
            self._cluster.add_plain(meta["namespace"], name)
        return f"take the name {meta['namespace']}/{name}"

    # Administrators.

    def _forbid_or_allow(self) -> str:
        self._api.forbidden ^= {self._random.choice(NAMESPACES)}
        return f"no pods of the operator in {sorted(self._api.forbidden)}"

    def _cordon(self) -> str:
        node, closed = self._random.choice(NODES), self._random.random() < 0.5
        self._cluster.cordon(node, closed)
        return f"cordon {node}: {closed}"

    # Bad luck.

    def _evict(self) -> str:
        return self._lose_a_pod("evict", self._api.start_delete)

    def _force_delete(self) -> str:
        return self._lose_a_pod("force delete", self._api.remove)

    def _lose_a_pod(self, how: str, end: Callable[[Object], None]) -> str:
        shadow = self._one_of(list(self._api.all(SHADOW_POD)))
        meta = shadow["metadata"] if shadow else {}
        pod = self._api.find(POD, meta["name"], meta["namespace"]) if meta else None
        if pod is None:
            return f"nothing to {how}"
        self._cluster.lost.add((meta["namespace"], meta["name"]))
        end(pod)
        return f"{how} {_name(pod)}"

    def _lose_or_add_node(self) -> str:
        node = NODES[-1]
        if self._api.find(NODE, node) is None:
            if any(self._cluster.pods_on(node)):
                return f"{node} stays away: its pods are not cleaned up yet"
            self._cluster.add_node(node, node in self._by_dra)
            self._pools.label(node)
            return f"add {node}"
        self._cluster.lose_node(node)
        return f"lose {node}"

    def _agent_goes_or_comes(self) -> str:
        node = self._random.choice(NODES)
        self._cluster.down ^= {node}
        self._cluster.wake()
        return f"agents down: {sorted(self._cluster.down)}"

    def _one_of(self, found: list[Object]) -> Object | None:
        return self._random.choice(found) if found else None


def _name(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
