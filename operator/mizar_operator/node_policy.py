"""Preferred pod affinity, by which the stock scheduler packs the pods of a pool with node policy
Binpack onto few nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mizar_core.names import LABEL_IN_USE, LABEL_POOL, LABEL_PROFILE, LABEL_SHADOW_POD
from mizar_core.planning.node_fit import HOSTNAME

Object = dict[str, Any]
"""A part of a pod's spec."""

PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
"""Kubernetes' name of the part of an affinity that a node should satisfy."""
WEIGHT: Final = 100
"""The largest weight that Kubernetes permits."""


def near_shadow_pods() -> Object:
    """The podAffinity of a shadow pod: to all shadow pods of the cluster."""
    return _affinity([_term({LABEL_SHADOW_POD: "true"}, everywhere=True)])


def near_shadow_pods_in_use(pool: str, profiles: Iterable[int], *, shared: bool) -> Object:
    """The podAffinity of a share pod that requests devices of these profiles of the pool: to their
    shadow pods in use. `shared`: also to those of other namespaces."""
    labels = {LABEL_POOL: pool, LABEL_IN_USE: "true"}
    return _affinity(
        [_term({**labels, LABEL_PROFILE: str(one)}, everywhere=shared) for one in profiles]
    )


def _affinity(terms: Iterable[Object]) -> Object:
    return {PREFERRED: [{"weight": WEIGHT, "podAffinityTerm": one} for one in terms]}


def _term(labels: Mapping[str, str], *, everywhere: bool) -> Object:
    term: Object = {"labelSelector": {"matchLabels": {**labels}}, "topologyKey": HOSTNAME}
    # An empty selector selects all namespaces; without one, the term means the pod's own.
    return {**term, "namespaceSelector": {}} if everywhere else term
