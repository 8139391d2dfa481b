"""Puts devices in place of the sizes that a pod requests, such as MiB of GPU memory. Pure.

A size is a resource of which each device of a profile has so many units (`sizes` of a GPUPool). A
container that requests sizes gets as many devices as the largest of them needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from mizar_core.names import ANNOTATION_SAME_CARD
from mizar_core.pod_requests import (
    ResourceEntry,
    Spec,
    is_countable,
    is_whole,
    resource_entries,
    whole_count,
)
from mizar_operator.webhook.pod_patch import Patch, annotate, pointer
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import PoolSize, VisiblePools


@dataclass(frozen=True)
class SizedPod:
    """A pod with devices in place of its sizes.

    `patch`: makes it so; empty for a template, which keeps its sizes, so that Argo CD and `kubectl
    diff` find no difference. `refusals`: a sentence for each request that no devices can meet,
    unless an update has left it alone. `rewritten`: by the sizes' names, the devices' resources.
    """

    pod: PodSpec
    patch: Patch = field(default_factory=list)
    refusals: tuple[str, ...] = ()
    rewritten: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    """The sizes that one container requests in its limits, or in its requests. `whole`: the entry
    for whole cards beside them, which pods written for HAMi have. `given`: the amount of the
    devices' own resource beside them, if there is one."""

    sizes: tuple[tuple[ResourceEntry, PoolSize], ...]
    whole: ResourceEntry | None
    given: str | None

    @property
    def size(self) -> PoolSize:
        """The first of the sizes."""
        return self.sizes[0][1]

    @property
    def path(self) -> tuple[str, ...]:
        return self.sizes[0][0].path

    @property
    def replaced(self) -> list[ResourceEntry]:
        """The entries in whose place the devices come. Sizes of 0 leave a whole card alone."""
        whole = [self.whole] if self.whole and self.devices else []
        return [*(entry for entry, _ in self.sizes), *whole]

    @property
    def devices(self) -> int:
        """How many devices the largest size needs."""
        return max(-(-whole_count(entry.amount) // size.units) for entry, size in self.sizes)

    def is_among(self, identities: Collection[tuple[str, ...]]) -> bool:
        """Whether all of its entries are among these."""
        return all(entry.identity in identities for entry in self.replaced)


def in_devices(pod: PodSpec, pools: VisiblePools) -> SizedPod:
    """The pod with devices in place of the sizes that it requests, except those that an update has
    left alone."""
    old = {entry.identity for entry in resource_entries(pod.old or {})}
    requests = [one for one in _requests(pod.spec, pools) if not one.is_among(old)]
    if not requests:
        return SizedPod(pod)
    if wrong := [sentence for one in requests for sentence in _problems(one)]:
        return SizedPod(pod, refusals=tuple(dict.fromkeys(wrong)))
    patch = [] if pod.template else _patch(requests, pod.pointer)
    sized = replace(pod, spec=_with_devices(pod.spec, requests))
    if any(one.devices > 1 for one in requests):
        mark = annotate(pod, ANNOTATION_SAME_CARD, "true")
        patch += mark
        if mark:
            annotations = {**(pod.annotations or {}), ANNOTATION_SAME_CARD: "true"}
            sized = replace(sized, annotations=annotations)
    names = {entry.key: one.size.resource for one in requests for entry, _ in one.sizes}
    return SizedPod(sized, patch, rewritten=names)


def _requests(spec: Spec, pools: VisiblePools) -> list[_Request]:
    if not pools.sizes:
        return []
    found = []
    for _, entries in groupby(resource_entries(spec), attrgetter("path")):
        by_key = {entry.key: entry for entry in entries}
        sizes = [(one, pools.sizes[key]) for key, one in by_key.items() if key in pools.sizes]
        if sizes:
            size = sizes[0][1]
            given = by_key.get(size.resource)
            whole = by_key.get(size.pool.spec.physical_resource)
            found.append(_Request(tuple(sizes), whole, given.amount if given else None))
    return found


def _problems(request: _Request) -> Iterator[str]:
    """A sentence for each reason why no devices can meet the request."""
    for entry, size in request.sizes:
        begin = f"container '{entry.container}', {entry.key}: "
        most = size.units * (size.profile.devices // size.profile.cards)
        if not is_countable(entry.amount) or whole_count(entry.amount) > most:
            yield f"{begin}ask for at most {most}, which is a whole card, instead of {entry.amount}"
        elif not is_whole(entry.amount):
            yield f"{begin}{entry.amount} is a fraction: ask for a whole number"
        if size.resource != request.size.resource:
            other, first = size.resource, request.sizes[0][0].key
            yield f"{begin}it is a size of {other}, but {first} one of {request.size.resource}"
    if request.whole and request.devices and request.whole.amount not in ("0", "1"):
        yield (
            f"container '{request.whole.container}', {request.whole.key}: {request.whole.amount}"
            f" beside {request.sizes[0][0].key}, which asks for a part of one card: ask for 1, or"
            " use several containers"
        )
    if request.given not in (None, str(request.devices)):
        names = f"{request.sizes[0][0].key} and {request.size.resource}"
        yield f"container '{request.sizes[0][0].container}' asks for {names}: keep one of them"


def _with_devices(spec: Spec, requests: Iterable[_Request]) -> Spec:
    for one in requests:
        gone = {entry.key for entry in one.replaced}
        resources = _at(spec, one.path)
        kept = {key: amount for key, amount in resources.items() if key not in gone}
        devices = {one.size.resource: str(one.devices)} if one.devices else {}
        spec = _with(spec, one.path, kept | devices)
    return spec


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


def _patch(requests: Iterable[_Request], base: str) -> Patch:
    patch: Patch = []
    for one in requests:
        for entry in one.replaced:
            patch.append({"op": "remove", "path": pointer(base, entry.path, entry.key)})
        if one.devices:
            path = pointer(base, one.path, one.size.resource)
            patch.append({"op": "add", "path": path, "value": str(one.devices)})
    return patch
