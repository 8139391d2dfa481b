"""The review of a pod that requests cards of idle owners: the patch that makes it wait for its
turn, or why it is refused.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mizar_core.names import (
    ANNOTATION_MAY_BE_LOST,
    DRA_RESOURCE,
    LABEL_SPOT_POD,
    PHYSICAL_RESOURCE,
    SCALE_UP_DELAY,
    SPOT_GATE,
    SPOT_RESOURCE,
    WHOLE_CARDS,
    parse_resource,
)
from mizar_core.pod_requests import (
    ResourceEntry,
    Spec,
    resource_entries,
    spot_cards_requested,
)
from mizar_core.quantities import counted
from mizar_operator.webhook.pod_patch import Patch, annotate, gate, label
from mizar_operator.webhook.pod_review import Decision, overcommitted, uncountable
from mizar_operator.webhook.pod_specs import PodSpec

_MEANS_SPOT = re.compile(r"mizar\.spot[./].*")
_CARD_RESOURCES = (PHYSICAL_RESOURCE, DRA_RESOURCE, *WHOLE_CARDS)
"""Prefixes of the resources by which drivers and device plugins of NVIDIA and others offer cards
and parts of them. No pod that borrows may request one, whether a pool has these cards or not."""


@dataclass(frozen=True)
class SpotSettings:
    """How Mizar was installed. `enabled`: whether it lends cards at all. `priority_class`: of spot
    pods that name none; empty for the cluster's default. `scale_up_delay`: for how long autoscalers
    ignore spot pods, such as 8760h; empty for no delay."""

    enabled: bool = False
    priority_class: str = ""
    scale_up_delay: str = ""


LENDS_NOTHING = SpotSettings()
"""The settings of an installation that lends no cards."""


@dataclass(frozen=True)
class Borrower:
    """What a namespace may borrow. `most`: the most cards at the same time. `whole_cards`: the
    resources by which device plugins offer the pools' whole cards."""

    namespace: str
    most: int = 0
    whole_cards: Collection[str] = (PHYSICAL_RESOURCE,)


def asks_for_spot(pod: PodSpec) -> bool:
    """Whether the pod asks for a spot card, by a valid or a mistaken name, and did not before an
    update."""
    old = {one.identity for one in _spot_entries(pod.old or {})}
    return any(one.identity not in old for one in _spot_entries(pod.spec))


def review_spot(pod: PodSpec, borrower: Borrower, settings: SpotSettings) -> Decision:
    """The patch that has the pod wait for its namespace's turn, or refusals. A template whose
    namespace may not borrow now passes with a warning: its quota may come later."""
    wrong = (
        *misspelt(pod),
        *overcommitted((one.key, one) for one in _spot_entries(pod.spec)),
        *uncountable(_spot_entries(pod.spec)),
        *mixed(pod, borrower.whole_cards),
        *_lonely(pod),
    )
    doubts = tuple(_unlent(pod, borrower, settings))
    if wrong or (doubts and not pod.template):
        return Decision(refusals=(*dict.fromkeys(wrong), *doubts), doubtful=bool(doubts))
    return Decision([] if pod.template else _waiting(pod, settings), warnings=doubts)


def misspelt(pod: PodSpec) -> Iterator[str]:
    """A sentence for each name that is meant as a spot card but is not valid."""
    for one in _spot_entries(pod.spec):
        if one.key != SPOT_RESOURCE:
            yield f"{_about(one)}: there is no such resource: write {SPOT_RESOURCE}"


def mixed(pod: PodSpec, whole_cards: Collection[str]) -> Iterator[str]:
    """A sentence for each container that asks for whole cards or shares, in a pod that borrows."""
    for one in resource_entries(pod.spec):
        if one.key in whole_cards or one.key.startswith(_CARD_RESOURCES) or parse_resource(one.key):
            yield (
                f"container '{one.container}' asks for {one.key}: a pod that borrows cards by"
                f" {SPOT_RESOURCE} can have neither whole cards nor shares: use another pod"
            )


def _lonely(pod: PodSpec) -> Iterator[str]:
    may_be_lost = (pod.annotations or {}).get(ANNOTATION_MAY_BE_LOST) == "true"
    if not (pod.template or pod.controlled or may_be_lost):
        yield (
            "nothing would replace this pod when its card goes back to its owner: create it by a"
            f' Job or Deployment, or set the annotation {ANNOTATION_MAY_BE_LOST}: "true"'
        )


def _unlent(pod: PodSpec, borrower: Borrower, settings: SpotSettings) -> Iterator[str]:
    """Why no cards are lent to the pod, as installation and quotas are now."""
    asked = spot_cards_requested(pod.spec)
    if not settings.enabled:
        yield (
            f"{SPOT_RESOURCE}: this installation lends no cards: the chart's value spot.enabled is"
            " false"
        )
    elif borrower.most == 0:
        yield (
            f"{SPOT_RESOURCE}: namespace '{borrower.namespace}' may not borrow cards: it needs"
            " spot.max above 0 in one of its GPUQuotas"
        )
    elif asked > borrower.most:
        yield (
            f"{SPOT_RESOURCE}: the pod asks for {counted(asked, 'card')}, and spot.max of the"
            f" GPUQuotas of namespace '{borrower.namespace}' allows {borrower.most}"
        )


def _waiting(pod: PodSpec, settings: SpotSettings) -> Patch:
    return [
        *label(pod, LABEL_SPOT_POD),
        *annotate(pod, SCALE_UP_DELAY, settings.scale_up_delay),
        *gate(pod, SPOT_GATE),
        *_prioritised(pod, settings),
    ]


def _prioritised(pod: PodSpec, settings: SpotSettings) -> Patch:
    """The patch that sets the PriorityClass of a pod without one. It removes the priority that the
    API server has filled in before admission: the API server computes a missing priority again, and
    refuses one that is not the class's."""
    if pod.old is not None or not settings.priority_class or pod.spec.get("priorityClassName"):
        return []
    computed = [one for one in ("priority", "preemptionPolicy") if one in pod.spec]
    return [
        *({"op": "remove", "path": f"{pod.pointer}/{one}"} for one in computed),
        {
            "op": "add",
            "path": f"{pod.pointer}/priorityClassName",
            "value": settings.priority_class,
        },
    ]


def _spot_entries(spec: Spec) -> Iterable[ResourceEntry]:
    return [one for one in resource_entries(spec) if _MEANS_SPOT.fullmatch(one.key)]


def _about(one: ResourceEntry) -> str:
    return f"container '{one.container}', {one.key}"
