"""Silent node agents: finds the shadow pods that they do not report on, and the nodes that new
shadow pods avoid because of them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime

from mizar_core.planning.shadow_stage import ShadowStage, is_agent_silent, stage_of
from mizar_core.planning.snapshot import Key, ShadowView, Snapshot

_WAITS_FOR_AGENT = (ShadowStage.STARTING, ShadowStage.DRAINING)


@dataclass(frozen=True)
class Silence:
    """The silence of node agents in a snapshot.

    `shadows`: the shadow pods that wait for a silent agent. `unanswered`: those of them that the
    agent did not even begin to handle. `nodes`: where these are. `heard`: the nodes that were
    silent recently and have been heard from since. `avoided`: `nodes`, and those that were silent
    recently and have not been heard from.
    """

    shadows: frozenset[Key]
    unanswered: frozenset[Key]
    nodes: frozenset[str]
    heard: frozenset[str]
    avoided: frozenset[str]


def find_silence(snapshot: Snapshot, nodes: Container[str], now: datetime) -> Silence:
    """The silence of node agents. `nodes`: the names of all nodes that exist."""
    found = [
        one
        for one in snapshot.shadows
        if is_agent_silent(one, now) and stage_of(one, nodes) in _WAITS_FOR_AGENT
    ]
    unanswered = [one for one in found if not one.draining]
    silent = frozenset(one.on_node or "" for one in unanswered)
    heard = _heard_from(snapshot) - silent
    return Silence(
        frozenset(one.key for one in found),
        frozenset(one.key for one in unanswered),
        silent,
        heard,
        silent | (snapshot.silent_nodes.keys() - heard),
    )


def _heard_from(snapshot: Snapshot) -> frozenset[str]:
    """The nodes whose agents have offered devices since they were silent."""
    silent = snapshot.silent_nodes
    heard = (one for one in snapshot.shadows if _is_newer(one, silent)) if silent else ()
    return frozenset(one.on_node or "" for one in heard)


def _is_newer(shadow: ShadowView, silent: Mapping[str, datetime]) -> bool:
    at = silent.get(shadow.on_node or "")
    return at is not None and shadow.healthy > 0 and (shadow.heard_at or at) > at
