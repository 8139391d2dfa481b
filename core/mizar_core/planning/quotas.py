"""Quotas: who may have shadow pods of which profile, and how much of each quota is used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mizar_core.errors import NameRefused
from mizar_core.models import GPUPool, GPUPoolSpec, GPUQuota, Profile, ProfileQuota
from mizar_core.names import resource_name, tenant_resource_name
from mizar_core.planning.node_fit import Pairs
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import Key, ShadowView, quota_key
from mizar_core.quantities import counted


@dataclass(frozen=True)
class Entitlement:
    """A quota's right to shadow pods of one profile of its pool."""

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
        """Tells it from all other offers: its quota, and the devices of its profile."""
        return self.key, self.profile.devices

    @property
    def selector(self) -> Pairs:
        """The pool's node selector."""
        return frozenset(self.pool.spec.node_selector.items())


class Entitlements:
    """All offers, found by quota and profile, or by who asks for what."""

    def __init__(self, pools: Iterable[GPUPool], quotas: Iterable[GPUQuota]) -> None:
        self._by_quota: dict[tuple[Key, int], Entitlement] = {}
        self._by_demand: defaultdict[tuple[str, str], list[Entitlement]] = defaultdict(list)
        known = {pool.metadata.name: pool for pool in pools}
        for quota in sorted(quotas, key=quota_key):
            if (pool := known.get(quota.spec.pool)) is not None:
                self._add_all(quota, pool)

    def __iter__(self) -> Iterator[Entitlement]:
        return iter(self._by_quota.values())

    def of(self, quota: Key, devices: int) -> Entitlement | None:
        """The quota's offer of that profile."""
        return self._by_quota.get((quota, devices))

    def to(self, namespace: str, resource: str) -> list[Entitlement]:
        """Who may pay for the resource when a pod of the namespace asks for it, in order."""
        return self._by_demand.get((namespace, resource), [])

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
    """The resource that a namespace's share pods ask for; None if it can have none."""
    if pool.tenancy == "Shared":
        return resource_name(pool.resource_prefix, devices)
    try:
        return tenant_resource_name(namespace, pool.resource_prefix, devices)
    except NameRefused:
        return None


class ShadowCount:
    """Shadow pods per (quota, profile), and cards per quota."""

    def __init__(self) -> None:
        self.shadows: Counter[tuple[Key, int]] = Counter()
        self.cards: Counter[Key] = Counter()

    def copy(self) -> ShadowCount:
        """One that counts on by itself."""
        made = ShadowCount()
        made.shadows, made.cards = self.shadows.copy(), self.cards.copy()
        return made

    def add(self, shadow: ShadowView, by: int) -> None:
        """Count a shadow pod in (by=1) or out (by=-1)."""
        self.count(shadow.quota_key, shadow.devices, shadow.cards, by)

    def count(self, quota: Key, devices: int, cards: int, by: int = 1) -> None:
        """Count so many shadow pods of a profile in."""
        self.shadows[quota, devices] += by
        self.cards[quota] += by * cards

    def has_all_shadows(self, entitlement: Entitlement) -> bool:
        """Whether there are as many of the profile as the quota allows, whatever its cards."""
        return self.shadows[entitlement.shape] >= entitlement.limits.max

    def limit_reached(self, entitlement: Entitlement) -> str | None:
        """Why the quota does not allow one more of these; None if it does."""
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
    """`existing` counts every shadow pod there is; `live` those that are to stay.

    New ones must fit beside all that exist. A drain may be cancelled, and `min` is met, by what
    is live.
    """

    def __init__(self) -> None:
        self.existing = ShadowCount()
        self.live = ShadowCount()

    def add(self, shadow: ShadowView, stage: ShadowStage, *, live: bool, by: int = 1) -> None:
        """Count a shadow pod in or out."""
        if stage is not ShadowStage.GONE:
            self.existing.add(shadow, by)
        if live:
            self.live.add(shadow, by)
