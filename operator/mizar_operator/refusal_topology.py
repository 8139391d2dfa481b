"""Finds in the scheduler's message which of a pod's constraints on groups of nodes, such as zones,
is the reason for which it refuses nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mizar_core.planning.node_fit import HOSTNAME
from mizar_core.planning.refusal_message import AFFINITY, ANTI_AFFINITY, SPREAD
from mizar_operator.node_needs import REQUIRED

Json = Mapping[str, Any]
"""An object, or a part of one, as the API server sends it."""


def refusal_topology(spec: Json, message: str | None) -> str | None:
    """The key of the node label whose values the scheduler compares for the constraint that its
    message names: a node that is refused by it is refused with all nodes that have the same value.
    None if the message names no such constraint, or does not say which of several it is: then the
    one by host name, which no two nodes share, may be the reason."""
    found = set(_keys(spec, message or ""))
    return sys.intern(found.pop()) if len(found) == 1 and HOSTNAME not in found else None


def _keys(spec: Json, message: str) -> Iterator[str]:
    if SPREAD in message:
        for one in spec.get("topologySpreadConstraints") or ():
            if one.get("whenUnsatisfiable") == "DoNotSchedule":
                yield one["topologyKey"]
    for said, kind in ((AFFINITY, "podAffinity"), (ANTI_AFFINITY, "podAntiAffinity")):
        if said in message:
            yield from _required(spec, kind)


def _required(spec: Json, kind: str) -> Iterable[str]:
    found = (spec.get("affinity") or {}).get(kind) or {}
    return (one["topologyKey"] for one in found.get(REQUIRED) or ())
