"""Puts devices in place of the sizes that a pod requests, such as MiB of GPU memory. Pure.

A size is a resource of which each device of a profile has so many units (`sizes` of a GPUPool). A
container that requests sizes gets as many devices as the largest of them needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from mizar_core.names import (
    ANNOTATION_SAME_CARD,
    PHYSICAL_RESOURCE,
    parse_resource,
    resource_name,
)
from mizar_core.pod_requests import (
    ResourceEntry,
    Spec,
    is_countable,
    is_whole,
    resource_entries,
    whole_count,
)
from mizar_core.quantities import parse_quantity
from mizar_operator.webhook.pod_patch import Patch, annotate, exchange
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.pool_sizes import PoolSizes, nearest
from mizar_operator.webhook.resource_names import VisiblePools

MAY_NOT_START = (
    "a size is a part of one card: if a node gives the pod devices of several cards, it does not"
    " start, and since it has no controller, nothing replaces it; with the annotation"
    f' {ANNOTATION_SAME_CARD}: "false" it starts on several cards'
)
"""A warning for whoever creates a pod without a controller whose size needs several devices."""


@dataclass(frozen=True)
class SizedPod:
    """A pod with devices in place of its sizes.

    `patch`: makes it so; empty for a template, which keeps its sizes, so that Argo CD and `kubectl
    diff` find no difference. `refusals`: a sentence for each request that no pool could ever meet.
    `doubts`: for each that the pools, as they are, cannot meet; with either, the pod is unchanged.
    `guessed`: whether other pools or quotas might decide otherwise. `rewritten`: by the sizes'
    names, the devices' resources.
    """

    pod: PodSpec
    patch: Patch = field(default_factory=list)
    refusals: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    guessed: bool = False
    rewritten: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Container:
    """A container that requests sizes. `entries`: all of its limits and requests. `sizes`: those of
    them that are sizes; an amount of 0 asks for none. `of`: the pool's sizes."""

    entries: Sequence[ResourceEntry]
    sizes: Sequence[ResourceEntry]
    of: PoolSizes

    @property
    def asking(self) -> list[ResourceEntry]:
        """Its sizes that ask for something; those of the pool if none does."""
        asking = [one for one in self.sizes if not _is_zero(one)]
        return asking or [one for one in self.sizes if one.key in self.of.units]

    @property
    def resource(self) -> str:
        """The devices' resource, without a tenant."""
        return self.of.resource(self.asking[0].key)

    def devices(self, path: tuple[str, ...]) -> int:
        """How many devices the largest size needs in its limits or its requests, at `path`."""
        found = (self.of.devices(one.key, one.amount) for one in self.asking if one.path == path)
        return max(found, default=0)

    @property
    def most(self) -> int:
        return max(self.devices(one.path) for one in self.sizes)

    @property
    def whole(self) -> list[ResourceEntry]:
        """The entries for whole cards, which pods written for HAMi have beside sizes. Sizes of 0
        leave them alone."""
        names = {self.of.pool.spec.physical_resource, PHYSICAL_RESOURCE}
        return [one for one in self.entries if one.key in names and self.most]

    def given(self, pools: VisiblePools) -> list[ResourceEntry]:
        """The entries for devices of the same resource, in any spelling of the namespace's."""
        return [one for one in self.entries if self._is_same(one.key, pools)]

    def _is_same(self, key: str, pools: VisiblePools) -> bool:
        parsed = parse_resource(key)
        match = parsed and pools.match(parsed.prefix, parsed.profile)
        if not parsed or not match or match.tenant not in (None, pools.namespace):
            return False
        return resource_name(match.pool.spec.resource_prefix, parsed.profile) == self.resource


def in_devices(pod: PodSpec, pools: VisiblePools) -> SizedPod:
    """The pod with devices in place of the sizes that it requests, except in containers whose
    sizes an update has left alone."""
    if not pools.size_names:
        return SizedPod(pod)
    old = {entry.identity for entry in resource_entries(pod.old or {})}
    found: list[_Container] = []
    refusals: list[str] = []
    doubts: list[str] = []
    for entries, sizes in _requesting(pod.spec, pools):
        if all(one.identity in old for one in sizes):
            continue
        asked = {one.key for one in sizes if not _is_zero(one)} or {sizes[0].key}
        of = nearest(asked, pools)
        if of is None:
            doubts.append(f"{_begin(sizes[0])}no GPUPool has all of {', '.join(sorted(asked))}")
            continue
        one = _Container(entries, sizes, of)
        refusals += _refusals(one, pod, pools)
        doubts += _doubts(one, pools)
        found.append(one)
    if refusals or doubts:
        return SizedPod(pod, refusals=tuple(refusals), doubts=tuple(doubts))
    return _sized(pod, found, pools) if found else SizedPod(pod)


def _requesting(
    spec: Spec, pools: VisiblePools
) -> Iterator[tuple[list[ResourceEntry], list[ResourceEntry]]]:
    """The entries of each container that requests sizes, and those of them that are sizes."""
    for _, entries in groupby(resource_entries(spec), lambda one: one.path[:2]):
        every = list(entries)
        if sizes := [one for one in every if one.key in pools.size_names]:
            yield every, sizes


def _is_zero(entry: ResourceEntry) -> bool:
    return is_countable(entry.amount) and parse_quantity(entry.amount) == 0


def _refusals(one: _Container, pod: PodSpec, pools: VisiblePools) -> Iterator[str]:
    for entry in one.asking:
        if is_countable(entry.amount) and not _is_natural(entry.amount):
            yield f"{_begin(entry)}{entry.amount} is no whole number from 0 on: write one"
    for entry in one.whole:
        if entry.amount not in ("0", "1"):
            yield (
                f"{_begin(entry)}{entry.amount} beside {one.asking[0].key}, which asks for a part"
                " of one card: ask for 1, or use several containers"
            )
    for entry in one.given(pools):
        if pod.template or pod.old is None:
            both = f"{one.asking[0].key} and {entry.key}"
            yield f"container '{entry.container}' asks for {both}: keep one of them"


def _is_natural(amount: str) -> bool:
    return is_whole(amount) and parse_quantity(amount) >= 0


def _doubts(one: _Container, pools: VisiblePools) -> Iterator[str]:
    if all(map(_is_zero, one.sizes)):
        return
    pool = one.of.pool.metadata.name
    for entry in one.asking:
        most, resource = one.of.most(entry.key), one.of.resource(entry.key)
        if not is_countable(entry.amount) or whole_count(entry.amount) > most:
            yield (
                f"{_begin(entry)}ask for at most {most}, which is a whole card in pool '{pool}',"
                f" instead of {entry.amount}"
            )
        if resource != one.resource:
            first = one.asking[0].key
            yield f"{_begin(entry)}it is a size of {resource}, but {first} one of {one.resource}"
    if one.of.is_certain:
        return
    begin = _begin(one.asking[0])
    if pools.has_quotas:
        yield f"{begin}pool '{pool}' has it, but no GPUQuota of the namespace names that pool"
    elif one.of.rivals:
        names = ", ".join(f"'{name}'" for name in (pool, *one.of.rivals))
        yield f"{begin}pools {names} have it: a GPUQuota of the namespace must name one of them"


def _begin(entry: ResourceEntry) -> str:
    return f"container '{entry.container}', {entry.key}: "


def _sized(pod: PodSpec, found: Sequence[_Container], pools: VisiblePools) -> SizedPod:
    spec, patch = pod.spec, Patch()
    for one in found:
        # A pod's resources cannot change: where its manifest is applied again, it keeps its own.
        has_them = bool(one.given(pools))
        gone = [*one.sizes, *one.whole]
        for path in dict.fromkeys(entry.path for entry in gone):
            keys = [entry.key for entry in gone if entry.path == path]
            count = 0 if has_them else one.devices(path)
            added = {one.resource: str(count)} if count else {}
            kept = {key: value for key, value in _at(spec, path).items() if key not in keys}
            spec = _with(spec, path, kept | added)
            patch += exchange(keys, added, path, pod.pointer)
    sized = SizedPod(
        replace(pod, spec=spec),
        [] if pod.template else patch,
        guessed=not (pod.template or all(one.of.is_certain for one in found)),
        rewritten={entry.key: one.resource for one in found for entry in one.asking},
    )
    return _on_one_card(sized) if any(one.most > 1 for one in found) else sized


def _on_one_card(sized: SizedPod) -> SizedPod:
    """The pod with the annotation by which all devices of a container must be of one card."""
    pod = sized.pod
    mark = annotate(pod, ANNOTATION_SAME_CARD, "true")
    if not mark:
        return sized
    annotations = {**(pod.annotations or {}), ANNOTATION_SAME_CARD: "true"}
    return replace(
        sized,
        pod=replace(pod, annotations=annotations),
        patch=[*sized.patch, *mark],
        warnings=() if pod.controlled else (MAY_NOT_START,),
    )


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        node = node[int(step) if isinstance(node, list) else step]
    return node


def _with(node: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of the JSON value with another value at the path; shares everything else with it."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(node, list):
        at = int(step)
        return [*node[:at], _with(node[at], rest, value), *node[at + 1 :]]
    return {**node, step: _with(node[step], rest, value)}
