"""The feasible nodes of shadow pods, and what a shadow pod needs of its node so that the share pod
that waits for it can run there too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from mizar_core.models import GPUPool
from mizar_core.names import PHYSICAL_RESOURCE, is_mig
from mizar_core.planning.first_fit import Accepts
from mizar_core.planning.node_fit import (
    NO_NEEDS,
    AntiAffinity,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
    fits,
    fits_without_taints,
)
from mizar_core.planning.pool_nodes import model_requirements
from mizar_core.planning.snapshot import NodeView, ShadowView

AVOIDED_NODES_MAX = 256
"""Nodes to avoid that a shadow pod's affinity excludes: each is a line in the pod's spec."""


class FeasibleNodes:
    """The feasible nodes in a snapshot; each answer is computed once."""

    def __init__(
        self,
        pools: Mapping[str, GPUPool],
        nodes: Iterable[NodeView],
        shadows: Iterable[ShadowView],
        avoided: Collection[str] = frozenset(),
    ) -> None:
        self._pools = pools
        self._anti_affinity = _anti_affinity(shadows)
        self._avoided = avoided
        self._nodes = sorted(nodes, key=lambda one: one.name)
        self._of_pool: dict[str, Needs] = {}
        self._anywhere: dict[str, Needs] = {}
        self._feasible: dict[tuple[str, Needs], list[NodeView]] = {}
        self._needed: dict[tuple[str, Needs], Needs] = {}
        self._serves: dict[tuple[str, Needs, Needs], bool] = {}
        self._covers: dict[tuple[str, Needs, Needs], bool] = {}

    def of_pool(self, pool: str) -> Needs:
        """What every shadow pod of a pool needs of its node."""
        if pool not in self._of_pool:
            self._of_pool[pool] = self._avoiding(pool, self._of_pool_anywhere(pool))
        return self._of_pool[pool]

    def has_others(self, pool: str, needs: Needs) -> bool:
        """Whether a shadow pod with these needs may be placed on an available node that is not
        avoided."""
        found = self._feasible_for(pool, needs)
        return any(one.available and one.name not in self._avoided for one in found)

    def has_any(self, pool: str, needs: Needs) -> bool:
        """Whether an available node fits a shadow pod with these needs."""
        return any(one.available for one in self._feasible_for(pool, needs))

    def serves(self, pool: str, needs: Needs, share: Needs) -> bool:
        """Whether a share pod can go to every node where a shadow pod with these needs may be
        placed."""
        key = pool, needs, share
        if key not in self._serves:
            self._serves[key] = self._find_out(pool, needs, share)
        return self._serves[key]

    def accepts(self, pool: str, needs: Needs) -> Accepts:
        """Tells whether a shadow pod with these needs serves a share pod, by the share pod's
        needs."""
        return lambda share: self.serves(pool, needs, share)

    def covers(self, pool: str, needs: Needs, other: Needs) -> bool:
        """Whether a shadow pod with these needs may be placed on every node where one with the
        other needs may."""
        key = pool, needs, other
        if key not in self._covers:
            names = {one.name for one in self._feasible_for(pool, needs)}
            self._covers[key] = all(one.name in names for one in self._feasible_for(pool, other))
        return self._covers[key]

    def accepts_blocked(self, pool: str, needs: Needs) -> Accepts:
        """Tells whether a share pod may as well wait for a shadow pod with these needs that gets no
        node: a new one for it could go nowhere else."""
        return lambda share: (
            self.serves(pool, needs, share)
            and self.covers(pool, needs, self.needs_for(pool, share))
        )

    def needs_for(self, pool: str, share: Needs) -> Needs:
        """What a shadow pod for the share pod needs of its node, and no more than that.

        Where the share pod may go to all nodes of the pool, these are the pool's own needs."""
        key = pool, share
        if key not in self._needed:
            base = self._tolerant(pool, share)
            feasible = self._feasible_for(pool, base)
            free = feasible and all(fits(share, one) for one in feasible)
            found = (
                replace(base, anti_affinity=share.anti_affinity)
                if free
                else base.merged_with(share)
            )
            self._needed[key] = self._avoiding(pool, found)
        return self._needed[key]

    def forbidding_taint(self, pool: str, needs: Needs) -> tuple[str, Taint] | None:
        """A node and its taint, where only taints keep a shadow pod with these needs from all
        nodes; None if there is a node for it, or none even without taints."""
        if self._feasible_for(pool, needs):
            return None
        return next(
            (
                (one.name, taint)
                for one in self._with_cards(pool)
                if fits_without_taints(needs, one)
                for taint in sorted(one.taints)
                if not needs.tolerates(taint)
            ),
            None,
        )

    def _find_out(self, pool: str, needs: Needs, share: Needs) -> bool:
        if not share.anti_affinity <= needs.anti_affinity:
            return False
        feasible = self._feasible_for(pool, needs)
        if not feasible:
            return needs.implies(share)
        # The shadow pod's own anti-affinity keeps it off those nodes.
        return all(fits(share, one) for one in feasible if not self._keeps_apart(needs, one))

    def _feasible_for(self, pool: str, needs: Needs) -> list[NodeView]:
        resource = self._pools[pool].spec.physical_resource
        if (resource, needs) not in self._feasible:
            found = [one for one in self._with_cards(pool) if fits(needs, one)]
            self._feasible[resource, needs] = found
        return self._feasible[resource, needs]

    def _of_pool_anywhere(self, pool: str) -> Needs:
        if pool not in self._anywhere:
            self._anywhere[pool] = pool_needs(self._pools[pool], self._nodes)
        return self._anywhere[pool]

    def _avoiding(self, pool: str, needs: Needs) -> Needs:
        """The needs, without the nodes to avoid where there are others."""
        if not self._avoided or not self.has_others(pool, needs):
            return needs
        names = (one.name for one in self._feasible_for(pool, needs) if one.name in self._avoided)
        avoided = frozenset(islice(names, AVOIDED_NODES_MAX))
        return replace(needs, excluded_nodes=needs.excluded_nodes | avoided)

    def _keeps_apart(self, needs: Needs, node: NodeView) -> bool:
        return bool(needs.anti_affinity) and not needs.anti_affinity.isdisjoint(
            self._anti_affinity.get(node.name, ())
        )

    def _with_cards(self, pool: str) -> Iterator[NodeView]:
        resource = self._pools[pool].spec.physical_resource
        return (one for one in self._nodes if resource in one.cards)

    def _tolerant(self, pool: str, share: Needs) -> Needs:
        """The pool's needs, with tolerations such that the shadow pod is placed on no node whose
        taints the share pod does not tolerate, and may be placed on those whose taints it does."""
        base = self._of_pool_anywhere(pool)
        taints = {taint for one in self._with_cards(pool) for taint in one.taints}
        closed = [one for one in taints if base.tolerates(one) and not share.tolerates(one)]
        kept = {t for t in base.tolerations if not any(t.covers(one) for one in closed)}
        keyed = {t for t in share.tolerations if t.key}
        # A toleration of everything is narrowed to the taints that there are, so that the shadow
        # pod does not tolerate a cordon.
        open_ = {one for one in taints if share.tolerates(one)}
        exact = {
            Toleration(one.key, "Equal", one.value, one.effect)
            for one in open_
            if not any(t.covers(one) for t in kept | keyed)
        }
        return replace(base, tolerations=frozenset(kept | keyed | exact))


def _anti_affinity(shadows: Iterable[ShadowView]) -> dict[str, set[AntiAffinity]]:
    """The anti-affinity of the shadow pods on each node, by the node's name."""
    found: defaultdict[str, set[AntiAffinity]] = defaultdict(set)
    for shadow in shadows:
        if shadow.pod is not None and shadow.pod.node is not None:
            found[shadow.pod.node] |= shadow.pod.needs.anti_affinity
    return dict(found)


def pool_needs(pool: GPUPool, nodes: Iterable[NodeView]) -> Needs:
    """What a pool's shadow pods need of their nodes. The taint by which nodes keep pods without
    cards away is tolerated without being named in the pool: that of whole cards for MIG devices
    too."""
    spec, models = pool.spec, model_requirements(pool, nodes)
    resources = {spec.physical_resource}
    if is_mig(spec.physical_resource):
        resources.add(PHYSICAL_RESOURCE)
    cards = {Toleration(one, "Exists", "", "NoSchedule") for one in resources}
    own = {
        Toleration(
            one.key or "",
            one.operator or "",
            one.value or "",
            one.effect or "",
            one.toleration_seconds,
        )
        for one in spec.tolerations
    }
    return replace(
        NO_NEEDS,
        selector=frozenset(spec.node_selector.items()),
        terms=(Term(models),) if models else (),
        tolerations=frozenset({*own, *cards}),
    )


def has_models_of(needs: Needs, pool: Needs) -> bool:
    """Whether a shadow pod's needs require the card models that its pool has now."""
    wanted = [one for term in pool.terms for one in term.labels]
    return all(
        any(_is_as_strict(own, one) for own in term.labels)
        for one in wanted
        for term in needs.terms or (Term(),)
    )


def _is_as_strict(own: Requirement, wanted: Requirement) -> bool:
    """It may exclude further models, whose nodes are gone now."""
    if own[:2] == wanted[:2] and own.operator == "NotIn":
        return set(own.values) >= set(wanted.values)
    return own == wanted
