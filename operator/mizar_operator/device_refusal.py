"""Tells from the scheduler's message whether it refuses a share pod its nodes only because devices
were lacking, so that the message is older than devices that its node offers now."""

from __future__ import annotations

import re
from typing import Final

NODE_REASONS: Final = (
    "node(s) had untolerated taint",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) were unschedulable",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
)
"""How kube-scheduler's reasons begin that refuse nodes by what the planner compares itself: these
are the reasons of other nodes than those it counts on."""


def lacks_devices_alone(message: str | None, resource: str) -> bool:
    """Whether all nodes that could run the pod are refused because they lack the resource, and for
    no other reason. A gang scheduler that keeps devices for a pod until the whole gang can start,
    or a scheduler with a long queue, leaves such a message unchanged once devices are there."""
    reasons = _reasons(message) if message else []
    lacking = f"Insufficient {resource}"
    rest = [one for one in reasons if one != lacking]
    return lacking in reasons and all(one.startswith(NODE_REASONS) for one in rest)


def _reasons(message: str) -> list[str]:
    """The reasons in a message such as "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient
    memory. preemption: …", without their counts."""
    _, _, listed = message.partition(" nodes are available: ")
    found, _, _ = listed.partition(". ")
    return [re.sub(r"^\d+ ", "", one) for one in found.removesuffix(".").split(", ")]
