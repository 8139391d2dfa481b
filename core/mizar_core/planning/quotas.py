"""Quotas: the shadow pods that each quota entitles to, and how much of each quota is used.

A quota is compared neither with other quotas nor with the cards that are free. Shadow pods of
several quotas may wait for the last card, and the scheduler decides which of them gets it.
preempt_idle.py makes room for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mizar_core.errors import NameRefused
from mizar_core.models import GPUPool, GPUPoolSpec, GPUQuota, Profile, ProfileQuota
from mizar_core.names import resource_name, tenant_resource_name
from mizar_core.planning.node_fit import Pairs
from mizar_core.planning.snapshot import Key, ShadowView, quota_key
from mizar_core.quantities import counted


@dataclass(frozen=True)
class Entitlement:
    """A quota's right to shadow pods of one profile of its pool. `resource`: the resource that
    their devices are offered as."""

    quota: GPUQuota
    pool: GPUPool
    profile: Profile
    limits: ProfileQuota
    resource: str

    @property
    def key(self) -> Key:
        """The quota's (namespace, name)."""
        return quota_key(self.quota)

    @property
    def shape(self) -> tuple[Key, int]:
        """Its quota and the devices of its profile, which together are unique."""
        return self.key, self.profile.devices

    @property
    def selector(self) -> Pairs:
        """The pool's node selector."""
        return frozenset(self.pool.spec.node_selector.items())


class Entitlements:
    """All entitlements, by quota and profile, or by the namespace and resource of share pods."""

    def __init__(self, pools: Iterable[GPUPool], quotas: Iterable[GPUQuota]) -> None:
        self._by_quota: dict[tuple[Key, int], Entitlement] = {}
        self._by_demand: defaultdict[tuple[str, str], list[Entitlement]] = defaultdict(list)
        self._first_of: dict[str, Key] = {}
        known = {pool.metadata.name: pool for pool in pools}
        for quota in sorted(quotas, key=quota_key):
            if (pool := known.get(quota.spec.pool)) is not None:
                self._first_of.setdefault(quota_key(quota)[0], quota_key(quota))
                self._add_all(quota, pool)

    def __iter__(self) -> Iterator[Entitlement]:
        return iter(self._by_quota.values())

    def of(self, quota: Key, devices: int) -> Entitlement | None:
        """The quota's entitlement to that profile; None if it has none."""
        return self._by_quota.get((quota, devices))

    def for_pods_of(self, namespace: str, resource: str) -> list[Entitlement]:
        """The entitlements to shadow pods for the namespace's share pods that request the resource,
        in the order in which they are used up."""
        return self._by_demand.get((namespace, resource), [])

    def quota_for(self, namespace: str, resource: str) -> Key | None:
        """The quota under which the namespace's share pods that request the resource are counted:
        the first that allows them shadow pods; else the namespace's first, since none has the
        profile; None if the namespace has no quota."""
        found = self.for_pods_of(namespace, resource)
        return found[0].key if found else self._first_of.get(namespace)

    def _add_all(self, quota: GPUQuota, pool: GPUPool) -> None:
        for limits in sorted(quota.spec.profiles, key=lambda one: one.devices):
            profile = pool.spec.profile(limits.devices)
            resource = resource_of(pool.spec, quota.metadata.namespace or "", limits.devices)
            if profile is None or resource is None:
                continue
            entitlement = Entitlement(quota, pool, profile, limits, resource)
            self._by_quota[entitlement.key, limits.devices] = entitlement
            self._by_demand[entitlement.key[0], resource].append(entitlement)


def resource_of(pool: GPUPoolSpec, namespace: str, devices: int) -> str | None:
    """The resource that a namespace's share pods request for a profile; None if the namespace's
    name cannot be part of a resource name."""
    if pool.tenancy == "Shared":
        return resource_name(pool.resource_prefix, devices)
    try:
        return tenant_resource_name(namespace, pool.resource_prefix, devices)
    except NameRefused:
        return None


_NO_SHADOWS: Mapping[int, int] = MappingProxyType({})


class ShadowCount:
    """Shadow pods per quota and profile, and cards per quota."""

    def __init__(self) -> None:
        self._shadows: defaultdict[Key, Counter[int]] = defaultdict(Counter)
        self.cards: Counter[Key] = Counter()

    def shadows(self, quota: Key) -> Mapping[int, int]:
        """How many shadow pods a quota has, by the number of devices of their profile."""
        return self._shadows.get(quota, _NO_SHADOWS)

    def of_profile(self, quota: Key, devices: int) -> int:
        """How many shadow pods of a profile a quota has."""
        return self.shadows(quota).get(devices, 0)

    def copy(self) -> ShadowCount:
        """An independent copy."""
        made = ShadowCount()
        made._shadows.update({quota: one.copy() for quota, one in self._shadows.items()})
        made.cards = self.cards.copy()
        return made

    def only(self, quota: Key) -> ShadowCount:
        """An independent copy of what is counted for one quota."""
        made = ShadowCount()
        made._shadows[quota].update(self.shadows(quota))
        made.cards[quota] = self.cards[quota]
        return made

    def add(self, shadow: ShadowView, by: int) -> None:
        """Count a shadow pod in (by=1) or out (by=-1)."""
        self.count(shadow.quota_key, shadow.devices, shadow.cards, by)

    def count(self, quota: Key, devices: int, cards: int, by: int = 1) -> None:
        """Add `by` shadow pods of a profile, each with `cards` cards."""
        self._shadows[quota][devices] += by
        self.cards[quota] += by * cards

    def has_all_shadows(self, entitlement: Entitlement) -> bool:
        """Whether there are as many shadow pods of the profile as the quota allows, however many
        cards they hold."""
        return self.of_profile(*entitlement.shape) >= entitlement.limits.max

    def limit_reached(self, entitlement: Entitlement) -> str | None:
        """The limit that keeps the quota from allowing one more of these shadow pods, as text for a
        message; None if there is none."""
        limits, ceiling = entitlement.limits, entitlement.quota.spec.max_cards
        if self.has_all_shadows(entitlement):
            return (
                f"quota {entitlement.key[1]} allows {counted(limits.max, 'shadow pod')} of profile "
                f"{limits.devices}"
            )
        if (
            ceiling is not None
            and self.cards[entitlement.key] + entitlement.profile.cards > ceiling
        ):
            return f"quota {entitlement.key[1]} allows {counted(ceiling, 'card')}"
        return None


class QuotaUsage:
    """How much of each quota is used. `existing` counts all shadow pods except those stranded on
    nodes that do not answer, whose cards no other pod can get either; `live` counts those that are
    to stay.

    A new shadow pod must fit beside all that exist. Whether a drain may be cancelled, and whether
    `min` is met, depends on those that stay.
    """

    def __init__(self) -> None:
        self.existing = ShadowCount()
        self.live = ShadowCount()

    def add(self, shadow: ShadowView, *, exists: bool, live: bool, by: int = 1) -> None:
        """Count a shadow pod in or out."""
        if exists:
            self.existing.add(shadow, by)
        if live:
            self.live.add(shadow, by)
