"""Translates a resource name in a pod by the cluster's pools, or says why the pod cannot have the
resource; decides which of two names of one resource stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mizar_core.models import GPUPool
from mizar_core.names import (
    DEFAULT_PREFIX,
    ParsedResource,
    parse_resource,
    resource_name,
    tenant_of,
    tenant_problem,
    tenant_resource_name,
)
from mizar_core.pod_requests import Aliases, DeviceRequest, ResourceEntry, resource_entries
from mizar_operator.webhook.pod_specs import PodSpec


@dataclass(frozen=True)
class Match:
    """The pool that a resource's prefix belongs to, and the tenant in the prefix, if any."""

    pool: GPUPool
    tenant: str | None


class VisiblePools:
    """The cluster's pools, as the pods of one namespace see them. `own`: the pools that the
    namespace's quotas name. `names`: the aliases that pools may give to profiles. `unreadable`: the
    names of further pools, which this version of Mizar cannot read.

    Several PerNamespace pools may have the same prefix: the quotas decide which of them a
    namespace gets devices of.
    """

    def __init__(
        self,
        pools: Iterable[GPUPool],
        namespace: str,
        own: Iterable[str] = (),
        names: Iterable[str] = (),
        unreadable: Iterable[str] = (),
    ) -> None:
        self.namespace = namespace
        self.unreadable = sorted(unreadable)
        self.names = frozenset(names)
        self._own = set(own)
        self._pools = sorted(pools, key=lambda pool: pool.metadata.name)

    @property
    def prefixes(self) -> set[str]:
        """The resource prefixes of all pools."""
        return {pool.spec.resource_prefix for pool in self._pools}

    @property
    def all(self) -> list[GPUPool]:
        """The pools, by name."""
        return self._pools

    @property
    def has_quotas(self) -> bool:
        """Whether the namespace has a quota."""
        return bool(self._own)

    def is_own(self, pool: GPUPool) -> bool:
        """Whether a quota of the namespace names the pool."""
        return pool.metadata.name in self._own

    @property
    def absent(self) -> list[str]:
        """The pools that the namespace's quotas name and that do not exist."""
        return sorted(self._own - {pool.metadata.name for pool in self._pools})

    @cached_property
    def aliases(self) -> Aliases:
        """The profiles' aliases that the installation permits, each with the resource that it
        stands for. If several pools have the same alias, which the webhook refuses, the first
        pool's counts."""
        found: dict[str, ParsedResource] = {}
        for pool in self._pools:
            for alias, devices in pool.spec.aliases.items():
                if alias in self.names:
                    parsed = ParsedResource(pool.spec.resource_prefix, devices, "slashed")
                    found.setdefault(alias, parsed)
        return found

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names of the pools' sizes that the installation permits."""
        return self.names & {one.name for pool in self._pools for one in pool.spec.sizes}

    def match(self, prefix: str, profile: int) -> Match | None:
        """The pool whose resources have this prefix, with or without a tenant before it; None if
        there is none. Of several pools, one that a quota of the namespace names and that has the
        profile comes first."""
        found = [
            Match(pool, tenant)
            for pool in self._pools
            for tenant in [tenant_of(prefix, pool.spec.resource_prefix)]
            if tenant or pool.spec.resource_prefix == prefix
        ]
        return min(found, key=lambda match: self._rank(match, profile), default=None)

    def _rank(self, match: Match, profile: int) -> tuple[int, bool, bool]:
        # A name that is translated already must stay as it is, so it comes before a pool whose
        # prefix happens to look like a translated name.
        spelling = [self.namespace, None].index(match.tenant) if self._mine(match) else 2
        return spelling, not self.is_own(match.pool), match.pool.spec.profile(profile) is None

    def _mine(self, match: Match) -> bool:
        return match.tenant in (self.namespace, None)


def is_default_prefix(prefix: str) -> bool:
    """Whether the prefix is Mizar's default one, with or without a tenant before it."""
    return prefix == DEFAULT_PREFIX or tenant_of(prefix, DEFAULT_PREFIX) is not None


def offered(pool: GPUPool) -> str:
    """The pool's resources, for a message: `mizar.share/gpu.2, mizar.share/gpu.4`."""
    sizes = sorted(profile.devices for profile in pool.spec.profiles)
    return ", ".join(resource_name(pool.spec.resource_prefix, size) for size in sizes)


@dataclass(frozen=True)
class Translation:
    """The translation of a resource's name. At most one of `refusal` and `doubt` is set."""

    target: str
    """The name to request instead; the name itself when it stays."""

    refusal: str = ""
    """Why no pod of this namespace can ever have the resource, and what to ask for."""

    doubt: str = ""
    """Why no pod can have the resource as the pools are now."""

    pool: str = ""
    """The pool that the name belongs to; empty when no pool is known to offer it."""

    whole_card: str = ""
    """The resource of that pool's whole cards."""

    packs: bool = False
    """Whether that pool's node policy is Binpack."""

    shared: bool = False
    """Whether that pool is shared by all namespaces."""

    @property
    def is_mizars(self) -> bool:
        """Whether the name is one of Mizar's, of a pool or by its default prefix."""
        return bool(self.pool or self.doubt)


def translate(key: str, parsed: ParsedResource, pools: VisiblePools, template: bool) -> Translation:
    """The resource that a pod requests where its user wrote `key`.

    In a `template` only the spelling changes: the tenant's name is added when the pod is made.
    """
    match = pools.match(parsed.prefix, parsed.profile)
    if match is None:
        return _without_pool(key, parsed, pools)
    name, whole = match.pool.metadata.name, match.pool.spec.physical_resource
    if refusal := _refusal(parsed, match, pools.namespace):
        return Translation(key, refusal=refusal, pool=name, whole_card=whole)
    target = _target(parsed, match.pool, pools.namespace, template)
    doubt = _doubt(parsed, match.pool, pools)
    return Translation(
        target,
        doubt=doubt,
        pool=name,
        whole_card=whole,
        packs=match.pool.spec.node_policy == "Binpack",
        shared=match.pool.spec.tenancy == "Shared",
    )


def _without_pool(key: str, parsed: ParsedResource, pools: VisiblePools) -> Translation:
    if not is_default_prefix(parsed.prefix):
        return Translation(key)
    slashed = resource_name(parsed.prefix, parsed.profile)
    doubt = f"no GPUPool offers {slashed}: create one, then the pod again"
    if pools.unreadable:
        doubt = (
            f"no GPUPool that can be read offers {slashed}, and Mizar cannot read GPUPool"
            f" '{pools.unreadable[0]}': ask an administrator"
        )
    return Translation(slashed, doubt=doubt)


def _refusal(parsed: ParsedResource, match: Match, namespace: str) -> str:
    plain = resource_name(match.pool.spec.resource_prefix, parsed.profile)
    if match.pool.spec.tenancy == "Shared":
        shared = f"pool '{match.pool.metadata.name}' is shared by all namespaces"
        return f"{shared}: ask for {plain}" if match.tenant else ""
    if match.tenant not in (None, namespace):
        return (
            f"it belongs to namespace '{match.tenant}':"
            f" ask for {plain}, which gives you devices of your own namespace"
        )
    return tenant_problem(namespace) or ""


def _doubt(parsed: ParsedResource, pool: GPUPool, pools: VisiblePools) -> str:
    if pool.spec.profile(parsed.profile):
        return ""
    if pools.absent and not pools.is_own(pool):
        absent = f"there is no pool '{pools.absent[0]}', which a GPUQuota of the namespace names"
        return f"{absent}: ask an administrator"
    missing = f"pool '{pool.metadata.name}' has no profile of {parsed.profile} devices"
    return f"{missing}: ask for one of {offered(pool)}"


def _target(parsed: ParsedResource, pool: GPUPool, namespace: str, template: bool) -> str:
    if template or pool.spec.tenancy == "Shared":
        return resource_name(parsed.prefix, parsed.profile)
    return tenant_resource_name(namespace, pool.spec.resource_prefix, parsed.profile)


_PROFILE = re.compile(r"v?gpus?[./_-]?0*([1-9][0-9]{0,3})", re.IGNORECASE)
"""The end of a misspelt name from which the meant profile can be told, such as GPU-02."""


@dataclass(frozen=True)
class TranslatedRequest:
    """A request for devices, and the translation of its resource name. `in_template`: it is in a
    pod template."""

    request: DeviceRequest
    translation: Translation
    in_template: bool = False

    @property
    def target(self) -> str:
        """The resource to request instead; the same one where nothing changes."""
        return self.translation.target

    @property
    def is_respelt(self) -> bool:
        """Whether the user wrote another name than that of the resource."""
        return self.target != self.request.key

    @property
    def is_renamed(self) -> bool:
        """Whether the resource gets another name.

        An alias stays in a template, so that Argo CD and `kubectl diff` find no difference; it is
        translated in the template's pods. A name without a slash cannot stay, since the API server
        would refuse it.
        """
        return self.is_respelt and not (self.in_template and "/" in self.request.key)

    def sentence(self, message: str, name: str = "") -> str:
        """The message about this request for the user, with the container and the resource name
        (the user's own spelling unless another `name` is given)."""
        return f"container '{self.request.container}', {name or self.request.key}: {message}"


def superseded(
    requests: Collection[TranslatedRequest], old: set[tuple[str, ...]]
) -> list[TranslatedRequest]:
    """The requests that are Mizar's translation of an earlier spelling, where the user now sends
    that spelling again as well.

    `kubectl apply` does so: it does not know the translation, and so never removes it.
    """
    respelt = {one.request.path for one in requests if one.is_respelt}
    return [
        one
        for one in requests
        if not one.is_respelt and one.request.path in respelt and one.request.identity in old
    ]


def misspelt_names(pod: PodSpec, pools: VisiblePools) -> Iterator[str]:
    """A sentence for each name that is meant as a share but is not valid, such as mizar.share/gpu
    or mizar.share/gpu.02, unless an update has left it alone.

    Kubernetes would take most of them for another device plugin's resources, and the pod would wait
    for ever.
    """
    old = {entry.identity for entry in resource_entries(pod.old or {})}
    for entry in resource_entries(pod.spec):
        known = entry.key in pools.names or parse_resource(entry.key)
        if entry.identity not in old and not known:
            yield from _sentence(entry, pools)


def nobodys_names(pod: PodSpec, pools: VisiblePools) -> Iterator[str]:
    """A sentence for each alias that the installation permits and no pool has now, unless an update
    has left it alone. The pod would wait for ever, since no device plugin offers such a name."""
    old = {entry.identity for entry in resource_entries(pod.old or {})}
    nobodys = pools.names - pools.aliases.keys() - pools.size_names
    for entry in resource_entries(pod.spec):
        if entry.key in nobodys and entry.identity not in old:
            yield (
                f"container '{entry.container}', {entry.key}: no profile of a GPUPool has this"
                " alias, and no GPUPool this size: add it to one, then create the pod again"
            )


def _sentence(entry: ResourceEntry, pools: VisiblePools) -> Iterator[str]:
    for prefix in sorted({*pools.prefixes, DEFAULT_PREFIX}):
        rest = _below(entry.key, prefix)
        # Under a pool's own prefix, a company may offer resources that are no GPUs.
        if rest and (prefix == DEFAULT_PREFIX or rest.lower().startswith("gpu")):
            instead = _instead(rest, prefix, pools)
            yield f"container '{entry.container}', {entry.key}: it names no profile: {instead}"


def _below(key: str, prefix: str) -> str:
    """The rest of a key after the prefix, with or without a tenant before it; empty if the key has
    another prefix."""
    match = re.fullmatch(rf"(?:[-a-z0-9]+\.)?{re.escape(prefix)}[./](.+)", key)
    return match[1] if match else ""


def _instead(rest: str, prefix: str, pools: VisiblePools) -> str:
    match = pools.match(prefix, 0)
    if number := _PROFILE.fullmatch(rest):
        return f"write {resource_name(prefix, int(number[1]))}"
    if match is None:
        return f"ask for {prefix}/gpu.N, with the N of a profile of a GPUPool"
    return f"ask for one of {offered(match.pool)}"
