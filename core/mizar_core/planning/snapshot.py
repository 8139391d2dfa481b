"""The planner's input: one moment of the cluster, reduced to what sharing cards depends on.

A snapshot covers all pools of one resource prefix, since their share pods ask for the same
resources. Nothing in it depends on the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from mizar_core.condition import Condition
from mizar_core.models import GPUPool, GPUQuota, Phase
from mizar_core.planning.node_fit import HOSTNAME, NO_NEEDS, Needs, Pairs, Taint, Toleration

Key = tuple[str, str]
"""(namespace, name)."""


def quota_key(quota: GPUQuota) -> Key:
    """(namespace, name) of a quota."""
    return quota.metadata.namespace or "", quota.metadata.name


Subject = tuple[str, str]
"""The UID of an object and the reason of an event about it."""

Wording = tuple[str, str, int]
"""A subject and a digest of the event's message."""

Announcement = Subject | Wording
"""Events that must not be posted again yet: all events of a subject, or one message about it."""

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class PodView:
    """The pod of a ShadowPod.

    `drain_asked`: when the operator asked for a drain. `in_use`: whether it is marked as in use.
    `refusal`: why its kubelet has refused it; empty if it has not.
    `unschedulable`: the scheduler's message, if it found no node. `needs`: its constraints on the
    node. `asked`: the constraints that the operator gave it, if admission has added others; None if
    it has not, as far as is known. `carve`: the annotation; None if it is not known. `priority`:
    the number from its PriorityClass. `overdue_at`: when its deletion is overdue by the rule of
    Kubernetes' ResourceQuotas: a grace period after the time at which it was to end.
    """

    uid: str = ""
    phase: PodPhase = "Pending"
    node: str | None = None
    bound_at: datetime | None = None
    deleting: bool = False
    drain_asked: datetime | None = None
    in_use: bool = False
    refusal: str = ""
    unschedulable: str | None = None
    needs: Needs = NO_NEEDS
    asked: Needs | None = None
    carve: str | None = None
    priority: int = 0
    overdue_at: datetime | None = None

    @property
    def own_needs(self) -> Needs:
        """Its constraints without those that admission has added, and would add to another pod in
        its place as well."""
        return self.needs if self.asked is None else self.asked

    @property
    def ended(self) -> bool:
        """Whether its containers will never run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ShadowView:
    """A ShadowPod and its pod.

    `holders`: the share pod of each held device, so that a pod may occur several times.
    `not_ready_because`: why the node agent does not offer the devices, in its own words; empty if
    it does, or has not reported. `heard_at`: when the node agent last reported a change.
    `broken`: whether the node agent reports failed cards. `lost`: whether it reports that the
    shadow pod has lost its cards. `lost_cards`: the UUIDs of those that are gone from the node
    while others are left; `on_lost_cards`: the share pods that hold devices there. `card_mib`: MiB
    of memory of its largest card, as the node agent reports it; 0 if it has not. `drained`: whether
    it reports that no pod can get a device any more. `contested`: whether a live read a moment ago
    showed that a pod uses it.
    """

    namespace: str
    name: str
    uid: str
    pool: str
    quota: str
    quota_uid: str
    resource: str
    devices: int
    cards: int
    sequence: int = 0
    deleting: bool = False
    finalizer: bool = True
    phase: Phase | None = None
    scheduled: Condition | None = None
    node: str | None = None
    ready: bool = False
    not_ready_because: str = ""
    broken: bool = False
    lost: bool = False
    lost_cards: tuple[str, ...] = ()
    on_lost_cards: tuple[Key, ...] = ()
    draining: bool = False
    drained: bool = False
    healthy: int = 0
    card_mib: int = 0
    holders: tuple[Key, ...] = ()
    in_use: bool = False
    idle_since: datetime | None = None
    heard_at: datetime | None = None
    pod: PodView | None = None
    contested: bool = False
    # Stored, since a plan uses them some forty times for each shadow pod.
    key: Key = field(init=False, repr=False, compare=False)
    """(namespace, name)."""
    quota_key: Key = field(init=False, repr=False, compare=False)
    """(namespace, name) of the quota that it counts against."""
    on_node: str | None = field(init=False, repr=False, compare=False)
    """The name of the node that it is on, by its pod or else its status; None without one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.namespace, self.name))
        object.__setattr__(self, "quota_key", (self.namespace, self.quota))
        object.__setattr__(self, "on_node", (self.pod.node if self.pod else None) or self.node)

    @property
    def held(self) -> bool:
        """Whether the node agent reports a holder."""
        return self.in_use or bool(self.holders)

    @property
    def usable(self) -> int:
        """How many devices it has for pods once they are all offered: those of failed cards are
        not."""
        return self.healthy if self.broken else self.devices

    @property
    def all_failed(self) -> bool:
        """Whether all of its cards have failed."""
        return self.broken and self.healthy == 0

    @property
    def unschedulable(self) -> str | None:
        """The scheduler's message while it finds no node for the pod; None if it does."""
        return None if self.pod is None or self.on_node else self.pod.unschedulable


@dataclass(frozen=True, slots=True)
class ShareView:
    """A share pod's request for devices of one resource: it waits while `node` is None, else it is
    bound.

    `count`: how many devices. `owner`: the UID of its controller, else its own. `of_daemon_set`:
    whether that is a DaemonSet, whose pods drains leave alone. `of_job`: whether it is a Job, which
    counts each evicted pod as failed. `after_init`: how
    many devices it keeps, where init containers that requested more have ended; 0 for a static pod,
    whose kubelet gives it its devices when it admits it, and starts it without any if the node does
    not know the resource. `unschedulable`:
    the scheduler's message, if it found no node. `lacks_devices`: whether the message names only a
    lack of these very devices, and nothing else that is in the way. `outages`: tolerations with
    which it stays for longer than other pods on a node whose kubelet does not answer. They are not
    part of `needs`, since they do not restrict where it may go. `priority`: that of its
    PriorityClass. `claims`: the names of the claims of its volumes; the node constraints of bound
    volumes are in `needs`. `refused_by`: the key of a node label, such as the zone's: nodes that
    have the same value of it as a node that the scheduler refuses are refused too; None if nodes
    are refused one by one. `gated`: whether Mizar's gate for pods that may preempt holds it back,
    and no other gate. `beside`: the other resources of which the pod requests devices, of whatever
    pools. `several_cards`: whether a container of it does not start because it demands one card and
    its devices are on several. `given_twice`: whether one does not start because the kubelet gave a
    device to two containers; `gives_way`: whether this is then the pod that has to go,
    `gives_way_to`: the pod that keeps the device, unless none can. `overdue_at`: as in PodView.

    Pods that have ended, that are being deleted before they got a node, or that another program's
    scheduling gate holds back are not in a snapshot.
    """

    namespace: str
    name: str
    uid: str
    resource: str
    count: int
    created: datetime
    node: str | None = None
    needs: Needs = NO_NEEDS
    owner: str = ""
    of_daemon_set: bool = False
    of_job: bool = False
    after_init: int | None = None
    unschedulable: str | None = None
    unschedulable_since: datetime | None = None
    lacks_devices: bool = False
    deleting: bool = False
    outages: frozenset[Toleration] = frozenset()
    priority: int = 0
    claims: tuple[str, ...] = ()
    refused_by: str | None = None
    gated: bool = False
    beside: tuple[str, ...] = ()
    several_cards: bool = False
    given_twice: bool = False
    gives_way: bool = False
    gives_way_to: Key | None = None
    overdue_at: datetime | None = None

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return self.namespace, self.name

    @property
    def groups(self) -> frozenset[str]:
        """Its anti-affinity groups: sets of pods, itself among them, of which no two may be on one
        node, by name."""
        if not self.needs.anti_affinity:
            return frozenset()
        found = (one.digest for one in self.needs.anti_affinity if one.topology == HOSTNAME)
        return frozenset(f"{self.namespace}/{digest}" for digest in found)

    @property
    def cannot_start(self) -> bool:
        """Whether a node agent refuses to start one of its containers because of its devices, which
        the kubelet never changes."""
        return self.several_cards or self.given_twice

    @property
    def must_go(self) -> bool:
        """Whether it can never start, so that only another pod in its place can."""
        return self.several_cards or self.gives_way

    @property
    def owed(self) -> int:
        """How many devices its containers have or are about to get."""
        return self.count if self.after_init is None else self.after_init


@dataclass(frozen=True, slots=True)
class CardsOnNode:
    """Cards of one physical resource: the node's capacity, and how many of them are allocatable.
    `model`, `mib`: the cards' model, as GPU feature discovery writes it, and the MiB of memory of
    the largest, where a DRA driver reports them; otherwise empty and 0."""

    total: int
    healthy: int
    model: str = ""
    mib: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `available`: whether the scheduler may place pods there (it is ready, not cordoned,
    and no autoscaler drains it), taints of administrators aside. `cards`: by physical resource.
    `devices`: how many devices its status offers of each of Mizar's resources, held ones
    included."""

    name: str
    labels: Pairs = frozenset()
    available: bool = True
    cards: Mapping[str, CardsOnNode] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    taints: frozenset[Taint] = frozenset()
    # Stored, since a node has some forty labels, of which a plan reads a few again and again.
    values: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The values of its labels, by their keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", dict(self.labels))

    def label(self, key: str) -> str | None:
        """The value of a label."""
        return self.values.get(key)


@dataclass(frozen=True, slots=True)
class PendingView:
    """A pod that requests whole cards and that the scheduler refuses for lack of them. `cards`: how
    many it requests of each physical resource. `pool`: the pool of a shadow pod's pod, empty for
    other pods. `reason_unknown`: whether its scheduler does not say whether it lacks cards: one
    with words of its own, or Kubernetes' own where ResourceClaims of the pod, or its other extended
    resources, may be what it lacks devices for."""

    namespace: str
    name: str
    uid: str
    created: datetime
    cards: tuple[tuple[str, int], ...]
    needs: Needs = NO_NEEDS
    pool: str = ""
    reason_unknown: bool = False

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal of shadow pods of this quota and profile by the API server, because of a
    ResourceQuota, a missing RuntimeClass, a policy or a webhook. It is part of snapshots until the
    creation may be tried again."""

    quota: Key
    devices: int
    message: str


THE_QUOTA_ITSELF = 0
"""`Refused.devices` where the API server refused the default quota, and no shadow pod."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that is tried without knowing whether it helps. `about`: the UID of the pod that it
    is to help; while that pod still waits, the same is not done again soon."""

    what: str
    about: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All input of a plan.

    `announced`: the events that are not to be posted again yet. `missing_classes`: RuntimeClasses
    that pools name and that do not exist. `refused`: shadow pods that the API server refused and
    that must not be created again yet. `free_since`: since when 1, 2, … devices of a resource have
    been free on a node, by (resource, node). `attempted`: recent attempts that did not help, see
    `Attempt`. `pending`: pods that wait for whole cards. `taken`: cards of a (physical resource,
    node) that other pods than shadow pods have, where that is known. `unanswered`: (quota, devices,
    sequence) of shadow pods whose creation got no answer, so that it may yet take effect.
    `refused_nodes`: nodes that the scheduler has recently refused a waiting share pod, by its (UID,
    resource), also where no devices are free any more. `names_taken`: names of shadow pods that are
    taken by other clients' objects. `silent_nodes`: nodes whose agents were silent recently, and
    when they last were. `namespaces`: the labels of namespaces that have no quota and in which
    share pods wait, where a pool has a default quota. `gated_since`: since when Mizar's gate alone
    has held back share pods that may preempt, as far as this operator has seen it, by their UIDs.
    `unopenable`: UIDs of those whose gates the API server refused to open a moment ago.
    `freed_until`: until when cards of a physical resource count as being freed, for pools of all
    prefixes. `nodes_without_class`: the nodes whose cards NVIDIA's DRA driver offers, if no
    DeviceClass names the resource by which pods could request them. `dra_refusal`: which right the
    operator lacks to see what cards that driver offers; empty if it has all.
    """

    pools: tuple[GPUPool, ...] = ()
    quotas: tuple[GPUQuota, ...] = ()
    shadows: tuple[ShadowView, ...] = ()
    shares: tuple[ShareView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    announced: frozenset[Announcement] = frozenset()
    missing_classes: frozenset[str] = frozenset()
    refused: tuple[Refused, ...] = ()
    free_since: Mapping[tuple[str, str], tuple[datetime, ...]] = field(default_factory=dict)
    attempted: frozenset[str] = frozenset()
    pending: tuple[PendingView, ...] = ()
    taken: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unanswered: frozenset[tuple[Key, int, int]] = frozenset()
    refused_nodes: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    names_taken: frozenset[Key] = frozenset()
    silent_nodes: Mapping[str, datetime] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gated_since: Mapping[str, datetime] = field(default_factory=dict)
    unopenable: frozenset[str] = frozenset()
    freed_until: Mapping[str, datetime] = field(default_factory=dict)
    nodes_without_class: frozenset[str] = frozenset()
    dra_refusal: str = ""
