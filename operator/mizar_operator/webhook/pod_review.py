"""The review of one pod spec: the patch that translates its resource names, or why it is refused.

Pure. resource_names.py decides which names a namespace may use and what they are translated to,
pod_patch.py makes the patch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from mizar_core.names import (
    DRA_RESOURCE,
    LABEL_SHARE_POD,
    PHYSICAL_RESOURCE,
    PREEMPTION_GATE,
    SCALE_UP_DELAY,
)
from mizar_core.pod_requests import (
    DeviceRequest,
    ResourceEntry,
    Spec,
    is_countable,
    is_whole,
    resource_entries,
)
from mizar_core.quantities import COUNT_MAX
from mizar_operator.node_policy import near_shadow_pods_in_use
from mizar_operator.webhook.pod_patch import Patch, annotate, gate, label, prefer, rename
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import (
    TranslatedRequest,
    VisiblePools,
    misspelt_names,
    nobodys_names,
    superseded,
    translate,
)
from mizar_operator.webhook.size_requests import in_devices

ContainerTarget = tuple[tuple[str, ...], str]
"""Where a request is in the pod spec, and the resource that it is translated to."""


@dataclass(frozen=True)
class Decision:
    """The decision on a pod spec: a patch, or refusals, whose sentences name the container and say
    what to do."""

    patch: Patch = field(default_factory=list)
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    doubtful: bool = False
    """Whether newer copies of the pools could change the decision."""
    rewritten: Mapping[str, str] = field(default_factory=dict)
    """The resource names that are rewritten, each with its new name."""


def review(
    pod: PodSpec, pools: VisiblePools, *, gates: bool = False, scale_up_delay: str = ""
) -> Decision:
    """The patch that translates what the pod requests, or refusals. An update that requests nothing
    new passes. `gates`: whether a pod that may preempt others gets a scheduling gate.
    `scale_up_delay`: for how long autoscalers ignore the pod, such as 8760h; empty for no delay.

    A template that no pool can satisfy now passes with a warning: the pool may come later.
    """
    sized = in_devices(pod, pools)
    if sized.refusals or (sized.doubts and not pod.template):
        return Decision(refusals=_distinct([*sized.refusals, *sized.doubts]), doubtful=True)
    found = _review(sized.pod, pools, gates, scale_up_delay)
    if found.refusals:
        return found
    names = {size: found.rewritten.get(name, name) for size, name in sized.rewritten.items()}
    return replace(
        found,
        patch=[*sized.patch, *found.patch],
        warnings=_distinct([*sized.doubts, *sized.warnings, *found.warnings]),
        doubtful=found.doubtful or sized.guessed or bool(sized.doubts),
        rewritten=names if sized.patch else found.rewritten,
    )


def _review(pod: PodSpec, pools: VisiblePools, gates: bool, scale_up_delay: str) -> Decision:
    """The review of a pod that requests no sizes."""
    if wrong := _distinct(misspelt_names(pod, pools)):
        return Decision(refusals=wrong)
    nobodys = list(nobodys_names(pod, pools))
    if pod.requests_nothing_new(pools.aliases) and not nobodys:
        return Decision()
    everything = [
        TranslatedRequest(one, translate(one.key, one.parsed, pools, pod.template), pod.template)
        for one in pod.requests(pools.aliases)
    ]
    doubtful = any(one.translation.doubt or not one.translation.pool for one in everything)
    ours = [one for one in everything if one.translation.is_mizars]
    dropped = superseded(ours, pod.old_requests(pools.aliases))
    # Found by identity: a template may have thousands of requests, too many to compare in pairs.
    gone = {id(one) for one in dropped}
    kept = [one for one in ours if id(one) not in gone]
    refusals = _refusals(kept, pod)
    doubts = _distinct([*unavailable_names(kept), *nobodys])
    if refusals or (doubts and not pod.template):
        return Decision(refusals=(*refusals, *doubts), doubtful=True)
    return Decision(
        [
            *rename(kept, dropped, pod.pointer),
            *(_marks(pod, kept, gates, scale_up_delay) if kept else ()),
        ],
        warnings=doubts,
        doubtful=doubtful or bool(doubts),
        rewritten={one.request.key: one.target for one in kept if one.is_renamed},
    )


def _marks(
    pod: PodSpec, kept: Collection[TranslatedRequest], gates: bool, scale_up_delay: str
) -> Patch:
    """The label of share pods, the annotation for autoscalers, the gate of those that may preempt
    others, and the affinity of those that are packed onto few nodes."""
    gated = gates and pod.may_preempt and not pod.template and any(one.request.asks for one in kept)
    # A static pod's mirror has a node already, and the API server allows no gate in addition.
    gated = gated and not pod.spec.get("nodeName")
    return [
        *label(pod, LABEL_SHARE_POD),
        *annotate(pod, SCALE_UP_DELAY, scale_up_delay),
        *(gate(pod, PREEMPTION_GATE) if gated else ()),
        *_packing(pod, kept),
    ]


def _packing(pod: PodSpec, kept: Iterable[TranslatedRequest]) -> Patch:
    """The affinity of a pod that requests devices of a pool whose node policy is Binpack. Of
    several such pools, the one of the first request counts."""
    asking = [one for one in kept if one.request.asks and one.translation.packs]
    if not asking:
        return []
    pool, shared = asking[0].translation.pool, asking[0].translation.shared
    own = {one.request.parsed.profile for one in asking if one.translation.pool == pool}
    return prefer(pod, near_shadow_pods_in_use(pool, sorted(own), shared=shared))


def _refusals(kept: Collection[TranslatedRequest], pod: PodSpec) -> tuple[str, ...]:
    return _distinct(
        [
            *forbidden_names(kept),
            *uncountable(one.request for one in kept),
            *named_twice(kept),
            *overcommitted((one.target, one.request) for one in kept),
            *mixed_resources(kept, pod.spec),
            *(past_the_scheduler(pod) if kept else ()),
        ]
    )


def forbidden_names(requests: Iterable[TranslatedRequest]) -> Iterator[str]:
    """A sentence for each name that this namespace can never have."""
    for one in requests:
        if one.translation.refusal:
            yield one.sentence(one.translation.refusal)


def unavailable_names(requests: Iterable[TranslatedRequest]) -> Iterator[str]:
    """A sentence for each name that no pod can have as the pools are now."""
    for one in requests:
        if one.translation.doubt:
            yield one.sentence(one.translation.doubt)


def uncountable(entries: Iterable[ResourceEntry]) -> Iterator[str]:
    """A sentence for each amount that is larger than any count of Mizar's, or a fraction. The API
    server refuses fractions too, and says nothing but that an integer is wanted."""
    for one in entries:
        if not is_countable(one.amount):
            many = f"{one.amount} is more than any cluster has: ask for at most {COUNT_MAX}"
            yield f"container '{one.container}', {one.key}: {many}"
        elif not is_whole(one.amount):
            yield f"container '{one.container}', {one.key}: {_fraction(one)}"


def _fraction(entry: ResourceEntry) -> str:
    whole = f"{entry.amount} is a fraction: ask for 1 or another whole number"
    if not isinstance(entry, DeviceRequest):
        return whole
    return f"{whole}; the number in the name says which part of a card one device is"


def named_twice(requests: Iterable[TranslatedRequest]) -> Iterator[str]:
    """A sentence for each resource that a container requests under several names, so that it is
    not clear which number holds."""
    for (_, target), same in groupby(sorted(requests, key=_target), key=_target):
        found = list(same)
        if len(found) > 1:
            names = " and ".join(sorted(one.request.key for one in found))
            yield found[0].sentence(f"{names} are the same: keep one of them", target)


def overcommitted(named: Iterable[tuple[str, ResourceEntry]]) -> Iterator[str]:
    """A sentence for each resource of a container whose request and limit differ: neither devices
    nor cards can be overcommitted. `named`: entries, each with the name by which sentences call its
    resource; entries of one name are of the same resource."""
    amounts: dict[ContainerTarget, dict[str, ResourceEntry]] = {}
    for name, one in named:
        amounts.setdefault((one.path[:-1], name), {})[one.section] = one
    for (_, name), sections in amounts.items():
        limit, request = sections.get("limits"), sections.get("requests")
        if request and not limit:
            about = f"container '{request.container}', {name}"
            yield f"{about}: it is only in requests: put it into limits"
        elif request and limit and request.amount != limit.amount:
            both = f"requests {request.amount} and limits {limit.amount} differ"
            yield f"container '{limit.container}', {name}: {both}: give only limits"


def mixed_resources(requests: Iterable[TranslatedRequest], spec: Spec) -> Iterator[str]:
    """A sentence for each container that requests devices of several resources, or whole cards as
    well: a container has one set of limits, which comes with the devices of one resource. Requests
    of 0 do not count."""
    everything: dict[str, set[str]] = {}
    for entry in resource_entries(spec):
        if entry.asks:
            everything.setdefault(entry.container, set()).add(entry.key)
    asking = (one for one in requests if one.request.asks)
    for name, same in groupby(sorted(asking, key=_container), key=_container):
        found = list(same)
        targets = sorted({one.target for one in found})
        if len(targets) > 1:
            names = " and ".join(targets)
            yield f"container '{name}' asks for {names}: it can have devices of one of them only"
        whole = {one.translation.whole_card for one in found}
        if PHYSICAL_RESOURCE in whole:
            whole.add(DRA_RESOURCE)
        for resource in sorted(whole & everything[name]):
            yield (
                f"container '{name}' asks for {resource} and {targets[0]}: it can have whole cards"
                " or shares; use two containers"
            )


def past_the_scheduler(pod: PodSpec) -> Iterator[str]:
    """A sentence for a pod whose user has set nodeName. If that node offers none of the resource,
    its kubelet starts the pod without a card, and no shadow pod is made for it."""
    if node := pod.chosen_node:
        yield (
            f"nodeName {node} bypasses the scheduler, which waits until the node has a free device:"
            f" remove it and select the node by nodeSelector kubernetes.io/hostname: {node}"
        )


def _target(one: TranslatedRequest) -> ContainerTarget:
    return one.request.path, one.target


def _container(one: TranslatedRequest) -> str:
    return one.request.container


def _distinct(sentences: Iterable[str]) -> tuple[str, ...]:
    """Each sentence once, in order."""
    return tuple(dict.fromkeys(sentences))
