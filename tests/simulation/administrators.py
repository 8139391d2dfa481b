"""What administrators change while it is in use: a pool's profiles and nodes, nodes' labels and
taints, namespaces, policies; and nodes that do not answer for a while."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, Object
from simulation.cluster import Cluster

ZONES = ("a", "b")
TAINT = {"key": "mine", "effect": "NoSchedule"}


class Administrators:
    """Their acts, each of which returns what was done, for the trace."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        nodes: tuple[str, ...],
        namespaces: tuple[str, ...],
        sizes: tuple[int, ...],
    ) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._random = random
        self._nodes = nodes
        self._namespaces = namespaces
        self._sizes = sizes

    def acts(self) -> dict[Callable[[], str], int]:
        """Each act, and how often it is drawn."""
        return {
            self._reshape_pool: 2,
            self._select_nodes: 1,
            self._label_node: 1,
            self._drop_profile: 1,
            self._taint: 1,
            self._end_namespace: 1,
            self._silence: 2,
            self._refuse_changes: 1,
        }

    def relent(self) -> None:
        """End what hinders the operator."""
        self._api.unchangeable.clear()
        for node in self._nodes:
            self._cluster.silence(node, False)
            self._set_taints(node, [])

    def _reshape_pool(self) -> str:
        random, sizes = self._random, self._sizes
        kept = sizes if random.random() < 0.7 else (random.choice(sizes),)
        profiles = [{"devices": size, "cards": random.choice((1, 1, 2))} for size in kept]
        return self._change_pools(profiles=profiles)

    def _select_nodes(self) -> str:
        zone = {"zone": self._random.choice(ZONES)}
        return self._change_pools(nodeSelector=self._random.choice(({}, zone)))

    def _change_pools(self, **spec: object) -> str:
        for pool in self._api.all(GPU_POOL):
            self._change(pool, spec)
        return f"edit the pool: {spec}"

    def _drop_profile(self) -> str:
        quotas = list(self._api.all(GPU_QUOTA))
        if not quotas:
            return "no profile to drop"
        quota = self._random.choice(quotas)
        profiles = quota["spec"]["profiles"]
        self._change(quota, {"profiles": profiles[1:] or profiles})
        return f"drop a profile of {quota['metadata']['namespace']}"

    def _change(self, obj: Object, spec: Object) -> None:
        obj["spec"] |= spec
        obj["metadata"]["generation"] += 1
        self._api.touch(obj)

    def _label_node(self) -> str:
        node, zone = self._random.choice(self._nodes), self._random.choice(ZONES)
        if (obj := self._api.find(NODE, node)) is not None:
            obj["metadata"]["labels"]["zone"] = zone
            self._api.touch(obj)
        return f"label {node}: {zone}"

    def _taint(self) -> str:
        node, taints = self._random.choice(self._nodes), self._random.choice(([], [TAINT]))
        self._set_taints(node, taints)
        return f"taints of {node}: {len(taints)}"

    def _set_taints(self, node: str, taints: list[Object]) -> None:
        if (obj := self._api.find(NODE, node)) is not None:
            obj["spec"]["taints"] = taints
            self._api.touch(obj)

    def _end_namespace(self) -> str:
        namespace = self._random.choice(self._namespaces)
        self._cluster.end_namespace(namespace)
        return f"delete namespace {namespace}"

    def _silence(self) -> str:
        node = self._random.choice(self._nodes)
        self._cluster.silence(node, node not in self._cluster.silent)
        return f"silent nodes: {sorted(self._cluster.silent)}"

    def _refuse_changes(self) -> str:
        self._api.unchangeable ^= {self._random.choice(self._namespaces)}
        return f"a policy lets nobody change pods in {sorted(self._api.unchangeable)}"
