"""What administrators change while it is in use: nodes' labels and taints, namespaces, policies;
and nodes that do not answer for a while. For pools and quotas see `pools`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mizar_kube.kinds import NODE, Object
from simulation.cluster import Cluster
from simulation.pools import ZONES

TAINT = {"key": "mine", "effect": "NoSchedule"}


class Administrators:
    """Their acts, each of which returns what was done, for the trace."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        nodes: tuple[str, ...],
        namespaces: tuple[str, ...],
    ) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._random = random
        self._nodes = nodes
        self._namespaces = namespaces

    def acts(self) -> dict[Callable[[], str], int]:
        """Each act, and how often it is drawn."""
        return {
            self._label_node: 1,
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
