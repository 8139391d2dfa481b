"""Reads the message with which a scheduler says why a pod fits no node.

kube-scheduler writes "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu.
preemption: …": each reason follows the number of its nodes. So do schedulers that are made of
kube-scheduler's framework and plugins, such as one with coscheduling. Others have words of their
own: KAI writes "no nodes with enough resources were found: 2 node(s) didn't have enough resources:
GPUs.", YuniKorn "request is waiting for cluster resources become available".

Where a DRA driver offers the cards, kube-scheduler does not name the resource that is lacking: it
writes "0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, …", as it does
where the devices of the pod's own ResourceClaims are lacking.
"""

from __future__ import annotations

import re
from typing import Final

SPREAD: Final = "node(s) didn't match pod topology spread constraints"
AFFINITY: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
"""What the plugins PodTopologySpread and InterPodAffinity say."""

NO_DEVICES: Final = "cannot allocate all claims"
"""What the plugin DynamicResources says of a node that lacks devices for a pod's claims, among
which is the claim that stands for its extended resources."""

_OF_OTHER_NODES: Final = (
    "node(s) had untolerated taint",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) were unschedulable",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
)
"""How the reasons begin that refuse nodes by what the planner compares itself: they are reasons of
other nodes than those it counts on."""

_END_OF_NAME: Final = r"(?![\w./-]*\w)"
"""What follows a resource's name: "Insufficient nvidia.com/gpu.shared" names another resource than
"Insufficient nvidia.com/gpu.", which may end a list."""

_IN_ITS_WORDS = re.compile(r"\b\d+/\d+ nodes are available: |\bInsufficient \w")
"""How a message begins in which kube-scheduler's framework gives its reasons, and how it names a
resource, as Volcano does too ("0/2 nodes are unavailable: 2 Insufficient cpu.")."""

_NO_NODE_NAMED = re.compile(r"0/\d+ nodes are available: (?!\d+ |preemption: )")
"""How the message begins with which a scheduler refuses a pod before it looks at any node:
otherwise each reason follows the number of its nodes, or, where nodes are refused without a reason,
what it says about preemption follows at once."""

_OF_ITS_GANG = re.compile(
    r"0/1 nodes are available: 1 (?:rejected due to timeout after waiting \S+ at plugin "
    r"|optimistic rejection in PostFilter\b|rejection in Unreserve\b)|pod group is (?:"
    r"unschedulable|waiting for preemption to complete)\b"
)
"""How the message begins of a pod that had a node and lost it again, since others of its gang have
none: in the words of kube-scheduler's framework (as one node, that which the pod had), of its
plugin Coscheduling and of its own gangs."""


def lacks(message: str | None, resource: str) -> bool:
    """Whether the message names the resource among what the pod waits for."""
    lacking = f"Insufficient {re.escape(resource)}{_END_OF_NAME}"
    return re.search(lacking, message or "") is not None


def lacks_claimed_devices(message: str | None) -> bool:
    """Whether the message says that nodes lack devices that DRA drivers offer, of whatever
    resource."""
    return NO_DEVICES in _reasons(message or "")


def gives_reasons(message: str | None) -> bool:
    """Whether the message is in kube-scheduler's words, so that the pod lacks no resource that it
    does not name."""
    return _IN_ITS_WORDS.search(message or "") is not None


def lacks_alone(message: str | None, resource: str) -> bool:
    """Whether all nodes that could run the pod are refused because they lack the resource, and for
    no other reason."""
    lacking = f"Insufficient {resource}"
    found = _reasons(message) if message else []
    rest = [one for one in found if one != lacking]
    return lacking in found and all(one.startswith(_OF_OTHER_NODES) for one in rest)


def names_no_node(message: str | None) -> bool:
    """Whether the pod is refused because of itself, for example since a claim of a volume does not
    exist, or because of the rest of its gang: no other node would help."""
    words = message or ""
    return any(one.match(words) is not None for one in (_NO_NODE_NAMED, _OF_ITS_GANG))


def _reasons(message: str) -> list[str]:
    """The reasons without their counts; empty where the message has another form."""
    _, _, listed = message.partition(" nodes are available: ")
    found, _, _ = listed.partition(". ")
    return [re.sub(r"^\d+ ", "", one) for one in found.removesuffix(".").split(", ")]
