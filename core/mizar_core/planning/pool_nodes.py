"""Decides which nodes and cards belong to a pool, and whether its profiles fit the cards."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from math import floor

from mizar_core.field_types import MEMORY_MIN
from mizar_core.models import GPUPool, Profile
from mizar_core.names import card_memory_label, card_model_label
from mizar_core.planning.node_fit import Requirement
from mizar_core.planning.snapshot import NodeView
from mizar_core.quantities import counted, parse_scaling


def in_pool(node: NodeView, pool: GPUPool) -> bool:
    """Whether the node belongs to the pool, which selects it, and offers the pool's resource."""
    return pool.spec.physical_resource in node.cards and is_selected(node, pool)


def is_selected(node: NodeView, pool: GPUPool) -> bool:
    """Whether the pool selects the node by its node selector and, if it names any, its card models,
    whatever the node offers."""
    if not frozenset(pool.spec.node_selector.items()) <= node.labels:
        return False
    if not pool.spec.card_models:
        return True
    # A pod's affinity can only name the node's model by this label.
    model = model_of(node, pool)
    return model is not None and matches(model, pool.spec.card_models)


def model_of(node: NodeView, pool: GPUPool) -> str | None:
    """The model of the pool's cards on the node, by its label; None without the label."""
    return node.label(card_model_label(pool.spec.physical_resource))


def known_model(node: NodeView, pool: GPUPool) -> str:
    """The model of the pool's cards on the node, which must have some, by its label or else as the
    DRA driver reports it; `unknown` without either."""
    return model_of(node, pool) or node.cards[pool.spec.physical_resource].model or "unknown"


def matches(model: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs matches the model, as a node's label or as NVML writes it: the label
    has `-` for blanks. Case is ignored."""
    return any(fnmatchcase(_plain(model), _plain(glob)) for glob in globs)


def _plain(text: str) -> str:
    return text.replace(" ", "-").lower()


def has_other_model(node: NodeView, pool: GPUPool) -> bool:
    """Whether the pool's cards on the node are known to be of a model that it does not name."""
    model = model_of(node, pool) if pool.spec.card_models else None
    return model is not None and not matches(model, pool.spec.card_models)


def model_requirements(pool: GPUPool, nodes: Iterable[NodeView]) -> tuple[Requirement, ...]:
    """The requirements of a pod's node affinity for a card of one of the pool's models; empty if
    the pool allows any model.

    The scheduler knows no globs. If the pool has globs, the affinity excludes the other models that
    are present rather than name those that match: nodes with further matching models may still be
    added, and a cluster autoscaler adds them only for pods that fit them.
    """
    globs = pool.spec.card_models
    if not globs:
        return ()
    label, known = card_model_label(pool.spec.physical_resource), {model_of(n, pool) for n in nodes}
    names = [one.replace(" ", "-") for one in globs]
    if all(_LABEL_VALUE.fullmatch(one) for one in names):
        fitting = {one for one in known if one and matches(one, globs)}
        return (Requirement(label, "In", tuple(sorted({*names, *fitting}))),)
    others = tuple(sorted(one for one in known if one and not matches(one, globs)))
    exists = Requirement(label, "Exists")
    return (exists, Requirement(label, "NotIn", others)) if others else (exists,)


_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


MIB = 1 << 20


Sizes = Sequence[tuple[int, str]]
"""Bytes of memory of a card of each node where that is known, with the node's name, in order."""


def card_sizes(pool: GPUPool, nodes: Iterable[NodeView], reported: Mapping[str, int]) -> Sizes:
    """The sizes of the pool's cards, by the nodes' labels, else by the DRA driver, else by
    `reported`: MiB of a card that a node agent has reported, by node. `nodes`: those of the
    pool."""
    resource = pool.spec.physical_resource
    label, found = card_memory_label(resource), list[tuple[int, str]]()
    for one in nodes:
        told = _labelled_mib(one, label) or one.cards[resource].mib
        if mib := told or reported.get(one.name, 0):
            found.append((mib * MIB, one.name))
    return sorted(found)


def misfit(pool: GPUPool, sizes: Sizes) -> str | None:
    """A sentence about the first profile that fits no card of these sizes; None if all fit one."""
    if not sizes:
        return None
    found = (_misfit(pool, profile, sizes[-1][0]) for profile in pool.spec.profiles)
    return next((one for one in found if one is not None), None)


def small_cards(pool: GPUPool, sizes: Sizes) -> str | None:
    """A sentence about the first profile whose devices get less memory on some of the pool's nodes
    than the profile says; None while there is none, as far as the cards' sizes are known."""
    for profile in pool.spec.profiles:
        least = _least(profile)
        # Counted by bisection: the sizes are in order, and there may be thousands of them.
        if small := bisect_left(sizes, least, key=lambda one: floor(_share(pool, profile, one[0]))):
            card, first = sizes[0]
            others = f" and {counted(small - 1, 'other node')}" if small > 1 else ""
            wanted = f"its memory {profile.memory}" if profile.memory else "any CUDA program needs"
            return (
                f"profile {profile.devices}: the cards of node {first}{others} are too small: "
                f"{card // MIB} MiB are {_share(pool, profile, card) // MIB} MiB per device, less "
                f"than {wanted}"
            )
    return None


def _share(pool: GPUPool, profile: Profile, card: int) -> Fraction:
    """Bytes of memory of a card that are an even share of it."""
    whole = card * Fraction(parse_scaling(pool.spec.memory_scaling))
    return whole * profile.cards / profile.devices


def _least(profile: Profile) -> int:
    """Bytes that an even share must have, so that a device has the memory that its profile says."""
    return max(profile.memory_bytes or 0, MEMORY_MIN)


def _misfit(pool: GPUPool, profile: Profile, card: int) -> str | None:
    share, wanted = _share(pool, profile, card), profile.memory_bytes
    what = (
        f"profile {profile.devices}: an even share of the pool's largest known card,"
        f" {card // MIB} MiB, is {share // MIB} MiB per device"
    )
    if share < MEMORY_MIN:
        return f"{what}, too little for any CUDA program: take fewer devices"
    if wanted is not None and wanted > share:
        return f"{what}, less than its memory {profile.memory}: lower that, or take fewer devices"
    return None


def _labelled_mib(node: NodeView, label: str) -> int:
    """A card's memory in MiB, by GPU feature discovery's label; 0 without the label."""
    value = node.label(label) or ""
    return int(value) if value.isdecimal() else 0
