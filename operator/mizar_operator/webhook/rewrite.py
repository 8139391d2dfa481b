"""The review of one pod spec: the patch that translates it, or why it is refused. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mizar_core.names import LABEL_SHARE_POD
from mizar_operator.webhook import rules
from mizar_operator.webhook.judged import Judged, PodSpec, judge, superseded
from mizar_operator.webhook.misspelt import misspelt
from mizar_operator.webhook.pools import Pools

Patch = list[dict[str, Any]]


@dataclass(frozen=True)
class Decision:
    """What to answer: a patch, or refusals; sentences name the container and say what to do."""

    patch: Patch = field(default_factory=list)
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    doubtful: bool = False
    """Whether newer knowledge of the pools could change it."""
    rewritten: Mapping[str, str] = field(default_factory=dict)
    """What was asked for, and what is asked for in its place."""


def review(pod: PodSpec, pools: Pools) -> Decision:
    """Translate what the pod asks for, or refuse it. An update that asks for nothing new passes.

    A template that no pool can satisfy now passes with a warning: the pool may come later.
    """
    wrong = _distinct(misspelt(pod, pools))
    if wrong:
        return Decision(refusals=wrong)
    if pod.asks_nothing_new:
        return Decision()
    everything = judge(pod, pools)
    doubtful = any(one.verdict.doubt or not one.verdict.pool for one in everything)
    ours = [one for one in everything if one.verdict.is_ours]
    dropped = superseded(ours, pod.old_asks)
    kept = [one for one in ours if one not in dropped]
    refusals = _distinct(
        [
            *rules.refused(kept),
            *rules.twice(kept),
            *rules.uneven(kept),
            *rules.mixed(kept, pod.spec),
        ]
    )
    doubts = _distinct(rules.doubted(kept))
    if refusals or (doubts and not pod.template):
        return Decision(refusals=(*refusals, *doubts), doubtful=True)
    patch = [*_patch(kept, dropped, pod.pointer), *(_label(pod) if kept else ())]
    return Decision(
        patch,
        warnings=doubts,
        doubtful=doubtful,
        rewritten={one.ask.key: one.target for one in kept if one.moves},
    )


def _label(pod: PodSpec) -> Patch:
    """The operator watches the pods with this label alone; templates need none."""
    if pod.template or (pod.labels or {}).get(LABEL_SHARE_POD) == "true":
        return []
    if pod.labels is None:
        return [{"op": "add", "path": "/metadata/labels", "value": {LABEL_SHARE_POD: "true"}}]
    return [{"op": "add", "path": f"/metadata/labels/{_escaped(LABEL_SHARE_POD)}", "value": "true"}]


def _patch(kept: Iterable[Judged], dropped: Iterable[Judged], pointer: str) -> Patch:
    moved = [one for one in kept if one.moves]
    gone = [*moved, *dropped]
    return [
        *({"op": "remove", "path": _pointer(pointer, one, one.ask.key)} for one in gone),
        *(
            {"op": "add", "path": _pointer(pointer, one, one.target), "value": one.ask.amount}
            for one in moved
        ),
    ]


def _pointer(base: str, one: Judged, key: str) -> str:
    return "/".join((base, *one.ask.path, _escaped(key)))


def _escaped(key: str) -> str:
    """In a JSON pointer. Names of resources and labels have no ~, which would need it as well."""
    return key.replace("/", "~1")


def _distinct(sentences: Iterable[str]) -> tuple[str, ...]:
    """Each sentence once, in order."""
    return tuple(dict.fromkeys(sentences))
