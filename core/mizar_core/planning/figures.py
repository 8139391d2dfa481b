"""The figures of quotas and pools: devices ready, on their way, in use, waited for; cards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from mizar_core.models import (
    CardCounts,
    GPUPool,
    ModelCounts,
    ProfileStatus,
)
from mizar_core.names import NODE_LABEL_CARD_MODEL
from mizar_core.planning.demand import Outcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.evict import lost_in_use
from mizar_core.planning.membership import in_pool
from mizar_core.planning.pots import rooms
from mizar_core.planning.snapshot import Key, ShadowView
from mizar_core.planning.stages import UNPLACED, Stage

MODELS_MAX = 64


@dataclass(slots=True)
class Share:
    """A shadow pod's part in its pot's figures, in devices."""

    free: int = 0
    coming: int = 0
    used: int = 0


def quota_figures(
    draft: Draft, outcomes: dict[str, Outcome]
) -> dict[Key, dict[int, ProfileStatus]]:
    """Per quota and profile. Waiting pods count where the first quota that could pay is."""
    counts: defaultdict[Key, defaultdict[int, Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for offer in draft.offers:
        counts[offer.key][offer.profile.devices].update({})
    for resource, outcome in outcomes.items():
        for shadow, share in _shares_of(draft, resource):
            counts[shadow.quota_key][shadow.devices].update(
                ready=share.free, pipelining=share.coming, in_use=share.used, shadow_pods=1
            )
        for pod in outcome.waiting:
            if offers := draft.offers.to(pod.namespace, resource):
                figures = counts[offers[0].key][offers[0].profile.devices]
                figures.update(ready=-pod.count, waiting=pod.count)
    return {
        quota: {n: ProfileStatus(devices=n, **profiles[n]) for n in sorted(profiles)}
        for quota, profiles in counts.items()
    }


def _shares_of(draft: Draft, resource: str) -> Iterable[tuple[ShadowView, Share]]:
    """Every shadow pod of a pot that exists.

    The scheduler counts requests per node; here they are spread over the node's shadow pods,
    those with holders first.
    """
    pending = {name: room.bound for name, room in rooms(draft, resource).items()}
    found = draft.of_resource(resource)
    for shadow in sorted(found, key=lambda one: _takes_first(draft, one)):
        stage, node = draft.stages[shadow.key], shadow.place or ""
        if stage is Stage.GONE:
            continue
        if node in pending and stage in (Stage.READY, Stage.STARTING):
            offered = shadow.healthy if stage is Stage.READY else shadow.devices
            used = min(pending[node], offered)
            pending[node] -= used
            yield shadow, _split(stage, offered - used, used)
        else:
            on_its_way = shadow.devices if stage in UNPLACED and draft.is_wanted(shadow) else 0
            yield shadow, Share(coming=on_its_way, used=len(shadow.holders))


def _split(stage: Stage, free: int, used: int) -> Share:
    if stage is Stage.READY:
        return Share(free=free, used=used)
    return Share(coming=free, used=used)


def _takes_first(draft: Draft, shadow: ShadowView) -> tuple[bool, int, Key]:
    return draft.stages[shadow.key] is not Stage.READY, -len(shadow.holders), shadow.key


def pool_figures(draft: Draft, pool: GPUPool) -> tuple[CardCounts, tuple[ModelCounts, ...]]:
    """The pool's cards: all of its nodes', those that its own shadow pods hold, per model. Nodes
    may be in several pools; each says what is its own doing."""
    held, resource = held_per_node(draft, pool.metadata.name), pool.spec.physical_resource
    models: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in draft.nodes.values():
        if in_pool(node, pool):
            cards = node.cards[resource]
            models[node.label(NODE_LABEL_CARD_MODEL) or "unknown"].update(
                total=cards.total, healthy=cards.healthy, held=held[node.name]
            )
    sums: Counter[str] = Counter()
    for one in models.values():
        sums.update(one)
    per_model = [ModelCounts(model=name, **models[name]) for name in sorted(models)]
    own = (one for one in draft.shadows.values() if one.pool == pool.metadata.name)
    lost = sum(one.cards for one in lost_in_use(draft, own))
    return CardCounts(lost=lost, **sums), tuple(per_model[:MODELS_MAX])


def held_per_node(draft: Draft, pool: str | None = None) -> Counter[str]:
    """Cards that shadow pods hold, those of one pool or of all, per node."""
    held: Counter[str] = Counter()
    for key, shadow in draft.shadows.items():
        pod = shadow.pod
        if pool is not None and shadow.pool != pool:
            continue
        if pod is not None and pod.node is not None and draft.stages[key] is not Stage.LOST:
            held[pod.node] += shadow.cards
    return held
