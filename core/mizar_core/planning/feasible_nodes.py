"""Finds the feasible nodes of shadow pods, and the constraints with which a shadow pod is placed
only where the share pod that waits for it can run too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from types import MappingProxyType

from mizar_core.models import GPUPool
from mizar_core.names import LABEL_NODE, PHYSICAL_RESOURCE, is_mig
from mizar_core.planning.first_fit import Accepts
from mizar_core.planning.node_fit import (
    HOSTNAME,
    NO_NEEDS,
    AntiAffinity,
    Needs,
    Pin,
    Requirement,
    Taint,
    Term,
    Toleration,
    combined_terms,
    fits,
    fits_without_taints,
    pins_of,
)
from mizar_core.planning.pool_nodes import model_requirements
from mizar_core.planning.snapshot import NodeView, ShadowView

AVOIDED_NODES_MAX = 256
"""The most avoided nodes that a shadow pod's affinity excludes: each takes a requirement of its own
in the pod's spec."""


class FeasibleNodes:
    """The feasible nodes in a snapshot; each answer is computed once.

    Needs that name a few nodes are compared with those nodes only: there may be as many such needs
    as nodes.
    """

    def __init__(
        self,
        pools: Mapping[str, GPUPool],
        nodes: Iterable[NodeView],
        shadows: Iterable[ShadowView],
        avoided: Collection[str] = frozenset(),
        taken: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        """`avoided`: nodes on which no new shadow pod is placed while there are others. `taken`:
        how many cards of a (resource, node) pods other than shadow pods have, where that is
        known."""
        self._pools = pools
        shadows = list(shadows)
        self._anti_affinity = _anti_affinity(shadows)
        self._cards_taken = taken
        self._held = Counter[str]()
        for one in shadows:
            if one.pod is not None:
                self._held[one.on_node or ""] += one.cards
        self._avoided = avoided
        self._nodes = sorted(nodes, key=lambda one: one.name)
        self._of_pool: dict[str, Needs] = {}
        self._anywhere: dict[str, Needs] = {}
        self._masks: dict[Needs, int] = {}
        self._free: dict[str, int] = {}
        self._shortened: dict[Needs, Needs] = {}
        self._by_label: dict[Needs, Needs] = {}
        self._taken_from: dict[frozenset[AntiAffinity], int] = {}
        self._needed: dict[tuple[str, Needs], Needs] = {}
        self._tolerant_of: dict[tuple[str, frozenset[Toleration]], Needs] = {}
        self._by_taints: dict[str, dict[frozenset[Taint], int]] = {}
        self._serves: dict[tuple[str, Needs, Needs], bool] = {}
        self._covers: dict[tuple[str, Needs, Needs], bool] = {}

    def of_pool(self, pool: str) -> Needs:
        """The constraints of every shadow pod of a pool on its node."""
        if pool not in self._of_pool:
            self._of_pool[pool] = self._avoiding(pool, self._of_pool_anywhere(pool))
        return self._of_pool[pool]

    def has_others(self, pool: str, needs: Needs) -> bool:
        """Whether a shadow pod with these needs may be placed on an available node that is not
        avoided, and has a free card as far as is known."""
        resource = self._pools[pool].spec.physical_resource
        others = self._feasible(pool, needs) & self._available & ~self._to_avoid
        return bool(others and others & self._with_free_card(resource))

    def _with_free_card(self, resource: str) -> int:
        if resource not in self._free:
            self._free[resource] = _bits(
                position
                for position, node in enumerate(self._nodes)
                if resource in node.cards
                and node.cards[resource].healthy
                > self._held[node.name] + self._cards_taken.get((resource, node.name), 0)
            )
        return self._free[resource]

    def has_any(self, pool: str, needs: Needs) -> bool:
        """Whether an available node fits a shadow pod with these needs."""
        return bool(self._feasible(pool, needs) & self._available)

    def has_open(self, pool: str, needs: Needs) -> bool:
        """Like has_any, but without the nodes that the shadow pod's anti-affinity keeps it off."""
        return bool(self._open(pool, needs) & self._available)

    def candidates(self, needs: Needs) -> list[NodeView]:
        """The nodes that the needs name, or all nodes if they do not name a few; by name."""
        if not needs.pins:
            return self._nodes
        found = {one.name: one for pin in needs.pins for one in self._by_pin.get(pin, ())}
        return [found[name] for name in sorted(found)]

    @cached_property
    def _by_pin(self) -> dict[Pin, list[NodeView]]:
        found = defaultdict[Pin, list[NodeView]](list)
        for node in self._nodes:
            for pin in pins_of(node):
                found[pin].append(node)
        return dict(found)

    def serves(self, pool: str, needs: Needs, share: Needs) -> bool:
        """Whether a share pod can go to every node where a shadow pod with these needs may be
        placed."""
        key = pool, needs, share
        if key not in self._serves:
            self._serves[key] = self._find_out(pool, needs, share)
        return self._serves[key]

    def accepts(self, pool: str, needs: Needs) -> Accepts:
        """A function that tells, by a share pod's needs, whether a shadow pod with these needs
        serves it."""
        return Accepts(
            lambda share: self.serves(pool, needs, share), self._pins_served(pool, needs)
        )

    def covers(self, pool: str, needs: Needs, other: Needs) -> bool:
        """Whether a shadow pod with these needs may be placed on every node where one with the
        other needs may."""
        key = pool, needs, other
        if key not in self._covers:
            self._covers[key] = not self._open(pool, other) & ~self._open(pool, needs)
        return self._covers[key]

    def accepts_blocked(self, pool: str, needs: Needs, own: Needs) -> Accepts:
        """Like `accepts`, for a shadow pod that gets no node: a share pod waits for it only if no
        other node, present or added by an autoscaler, could take a new shadow pod for the share
        pod. `own`: the shadow pod's needs without those that admission adds to every shadow pod."""
        return Accepts(
            lambda share: (
                (not own.pins or bool(self.needs_for(pool, share).pins))
                and self.serves(pool, needs, share)
                and self.covers(pool, own, self.needs_for(pool, share))
            ),
            self._pins_served(pool, needs),
        )

    def needs_for(self, pool: str, share: Needs) -> Needs:
        """The constraints on its node that a shadow pod for the share pod needs, and no more.

        Where the share pod may go to all nodes of the pool, these are the pool's own needs.
        """
        key = pool, share
        if key not in self._needed:
            base = self._tolerant(pool, share)
            found = (
                replace(base, anti_affinity=share.anti_affinity)
                if self._is_free(pool, base, share)
                else base.merged_with(share)
            )
            self._needed[key] = self._avoiding(pool, found)
        return self._needed[key]

    def by_label(self, needs: Needs) -> Needs:
        """These needs, with the excluded nodes that have Mizar's label excluded by one requirement
        on it. Karpenter adds no node for a pod whose affinity has names or hostnames in it."""
        if needs not in self._by_label:
            names = {one for one in needs.excluded_nodes if self._is_labelled(one)}
            self._by_label[needs] = _excluding(needs, LABEL_NODE, {one: one for one in names})
        return self._by_label[needs]

    def _is_labelled(self, node: str) -> bool:
        position = self._positions.get(node)
        return position is not None and (LABEL_NODE, node) in self._nodes[position].labels

    def shortened(self, needs: Needs) -> Needs:
        """These needs, written in less space where they exclude very many nodes: those that the
        shadow pod's own anti-affinity keeps it off are left out, and the others are excluded by one
        requirement on Mizar's label, or on their hostnames. Nodes with neither stay as they are."""
        if needs not in self._shortened:
            self._shortened[needs] = self._shorten(needs)
        return self._shortened[needs]

    def _shorten(self, needs: Needs) -> Needs:
        left = {one for one in needs.excluded_nodes if not self._is_apart(needs, one)}
        short = self.by_label(replace(needs, excluded_nodes=frozenset(left)))
        found = ((name, self._hostname(name)) for name in short.excluded_nodes)
        hosts = {name: host for name, host in found if host is not None}
        return _excluding(short, HOSTNAME, hosts)

    def _is_apart(self, needs: Needs, node: str) -> bool:
        return not needs.anti_affinity.isdisjoint(self._anti_affinity.get(node, ()))

    def _hostname(self, node: str) -> str | None:
        """The node's label, if no other node has the same."""
        if node not in self._positions:
            return None
        name = self._nodes[self._positions[node]].label(HOSTNAME)
        return name if name is not None and len(self._by_pin[HOSTNAME, name]) == 1 else None

    def forbidding_taint(self, pool: str, needs: Needs) -> tuple[str, Taint] | None:
        """A node and its taint, where only taints keep a shadow pod with these needs from all
        nodes; None if there is a node for it, or none even without taints."""
        if self._feasible(pool, needs):
            return None
        return next(
            (
                (one.name, taint)
                for one in self._with_cards(pool, needs)
                if fits_without_taints(needs, one)
                for taint in sorted(one.taints)
                if not needs.tolerates(taint)
            ),
            None,
        )

    def _find_out(self, pool: str, needs: Needs, share: Needs) -> bool:
        if not share.anti_affinity <= needs.anti_affinity:
            return False
        if not self._feasible(pool, needs):
            # The nodes that the share pod excludes say nothing about future nodes.
            return needs.implies(replace(share, excluded_nodes=frozenset()))
        return not self._open(pool, needs) & ~self._fitting(share)

    def _of_pool_anywhere(self, pool: str) -> Needs:
        if pool not in self._anywhere:
            self._anywhere[pool] = pool_needs(self._pools[pool], self._nodes)
        return self._anywhere[pool]

    def _avoiding(self, pool: str, needs: Needs) -> Needs:
        """The needs, with the nodes to avoid excluded if there are others."""
        found = self._feasible(pool, needs) & self._to_avoid
        if not found or not self.has_others(pool, needs):
            return needs
        names = (self._nodes[one].name for one in _positions_in(found))
        avoided = frozenset(islice(names, AVOIDED_NODES_MAX))
        return replace(needs, excluded_nodes=needs.excluded_nodes | avoided)

    def _open(self, pool: str, needs: Needs) -> int:
        """The feasible nodes but for those that the shadow pod's own anti-affinity keeps it off."""
        feasible = self._feasible(pool, needs)
        return feasible & ~self._taken(needs) if needs.anti_affinity else feasible

    def _taken(self, needs: Needs) -> int:
        """The nodes that the needs' anti-affinity excludes, as bits."""
        if needs.anti_affinity not in self._taken_from:
            self._taken_from[needs.anti_affinity] = _bits(
                self._positions[name]
                for name in self._anti_affinity
                if name in self._positions and self._is_apart(needs, name)
            )
        return self._taken_from[needs.anti_affinity]

    def _feasible(self, pool: str, needs: Needs) -> int:
        """The nodes with cards that fit the needs."""
        resource = self._pools[pool].spec.physical_resource
        return self._fitting(needs) & self._with_resource.get(resource, 0)

    def _fitting(self, needs: Needs) -> int:
        """The nodes that fit the needs: bits by their positions, so that sets of nodes are compared
        fast."""
        if needs not in self._masks:
            found = (one for one in self.candidates(needs) if fits(needs, one))
            self._masks[needs] = _bits(self._positions[one.name] for one in found)
        return self._masks[needs]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {one.name: position for position, one in enumerate(self._nodes)}

    @cached_property
    def _available(self) -> int:
        return _bits(position for position, one in enumerate(self._nodes) if one.available)

    @cached_property
    def _to_avoid(self) -> int:
        names = self._positions.keys() & self._avoided
        return _bits(self._positions[one] for one in names)

    @cached_property
    def _with_resource(self) -> dict[str, int]:
        """The nodes with cards, by physical resource."""
        found = defaultdict[str, list[int]](list)
        for position, node in enumerate(self._nodes):
            for resource in node.cards:
                found[resource].append(position)
        return {resource: _bits(positions) for resource, positions in found.items()}

    def _pins_served(self, pool: str, needs: Needs) -> frozenset[Pin] | None:
        """See Accepts: a share pod that names nodes is served only if it may go to each node where
        the shadow pod may be placed, and so to the first of them."""
        if not self._feasible(pool, needs):
            return needs.all_pins
        found = self._open(pool, needs)
        first = (found & -found).bit_length() - 1
        return pins_of(self._nodes[first]) if found else None

    def _with_cards(self, pool: str, needs: Needs = NO_NEEDS) -> Iterator[NodeView]:
        resource = self._pools[pool].spec.physical_resource
        return (one for one in self.candidates(needs) if resource in one.cards)

    def _is_free(self, pool: str, base: Needs, share: Needs) -> bool:
        """Whether there are nodes that the base allows, and the share pod may go to all of them."""
        found = 0
        for taints, nodes in self._nodes_of(pool).items():
            if all(base.tolerates(one) for one in taints):
                found |= nodes
        return bool(found) and not found & ~self._fitting(share)

    def _nodes_of(self, pool: str) -> dict[frozenset[Taint], int]:
        """The nodes that meet the pool's needs, taints aside, by their taints."""
        if pool not in self._by_taints:
            found, base = (
                defaultdict[frozenset[Taint], list[int]](list),
                self._of_pool_anywhere(pool),
            )
            for node in self._with_cards(pool):
                if fits_without_taints(base, node):
                    found[node.taints].append(self._positions[node.name])
            self._by_taints[pool] = {taints: _bits(some) for taints, some in found.items()}
        return self._by_taints[pool]

    @cached_property
    def _taints(self) -> dict[str, frozenset[Taint]]:
        """The taints of the nodes with cards, by physical resource."""
        found = defaultdict[str, set[Taint]](set)
        for node in self._nodes:
            for resource in node.cards if node.taints else ():
                found[resource] |= node.taints
        return {resource: frozenset(taints) for resource, taints in found.items()}

    def _tolerant(self, pool: str, share: Needs) -> Needs:
        key = pool, share.tolerations
        if key not in self._tolerant_of:
            self._tolerant_of[key] = self._find_tolerant(pool, share)
        return self._tolerant_of[key]

    def _find_tolerant(self, pool: str, share: Needs) -> Needs:
        """The pool's needs, with tolerations such that the shadow pod is placed on no node whose
        taints the share pod does not tolerate, and may be placed on those whose taints it does."""
        base = self._of_pool_anywhere(pool)
        taints = self._taints.get(self._pools[pool].spec.physical_resource, frozenset())
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


def _excluding(needs: Needs, key: str, values: Mapping[str, str]) -> Needs:
    """The needs, with the nodes named in `values` excluded by their values of the label `key`."""
    if not values:
        return needs
    line = Requirement(key, "NotIn", tuple(sorted(values.values())))
    left = replace(needs, excluded_nodes=needs.excluded_nodes.difference(values))
    return replace(left, terms=combined_terms(left.terms, (Term((line,)),)))


def _bits(positions: Iterable[int]) -> int:
    """The number with these bits set."""
    found = set(positions)
    size = max(found, default=0) // 8 + 1
    octets = bytearray(size)
    for one in found:
        octets[one // 8] |= 1 << one % 8
    return int.from_bytes(octets, "little")


def _positions_in(bits: int) -> Iterator[int]:
    """The positions of the set bits, the lowest first."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


def on_node(node: NodeView) -> Accepts:
    """A function that tells, by a pod's needs, whether the node admits it."""
    return Accepts(lambda needs: fits(needs, node), pins_of(node))


def _anti_affinity(shadows: Iterable[ShadowView]) -> dict[str, set[AntiAffinity]]:
    """The anti-affinity of the shadow pods on each node, by the node's name."""
    found: defaultdict[str, set[AntiAffinity]] = defaultdict(set)
    for shadow in shadows:
        if shadow.pod is not None and shadow.on_node is not None:
            found[shadow.on_node] |= shadow.pod.needs.anti_affinity
    return dict(found)


def pool_needs(pool: GPUPool, nodes: Iterable[NodeView]) -> Needs:
    """The constraints of a pool's shadow pods on their nodes. They tolerate, even if the pool does
    not list it, the taint that keeps pods without cards off GPU nodes, which has the resource as
    its key; for MIG devices also that of whole cards."""
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
    """Whether a requirement is at least as strict as the wanted one. It may exclude further models,
    whose nodes are gone by now."""
    if own[:2] == wanted[:2] and own.operator == "NotIn":
        return set(own.values) >= set(wanted.values)
    return own == wanted
