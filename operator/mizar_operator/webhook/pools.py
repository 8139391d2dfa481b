"""Which pool a resource name belongs to. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from mizar_core.models import GPUPool
from mizar_core.names import DEFAULT_PREFIX, resource_name, tenant_of


@dataclass(frozen=True)
class Match:
    """The pool that a resource's prefix belongs to, and the tenant in the prefix, if any."""

    pool: GPUPool
    tenant: str | None


class Pools:
    """The cluster's pools, as `namespace` sees them: `own` are those that its quotas name.

    Pools that keep tenants apart may have one prefix: quotas say whose devices a namespace gets.
    """

    def __init__(self, pools: Iterable[GPUPool], namespace: str, own: Iterable[str] = ()) -> None:
        self.namespace = namespace
        self._own = set(own)
        self._pools = sorted(pools, key=lambda pool: pool.metadata.name)

    @property
    def prefixes(self) -> set[str]:
        """Under which names pools offer their devices."""
        return {pool.spec.resource_prefix for pool in self._pools}

    def match(self, prefix: str, profile: int) -> Match | None:
        """The pool whose resources have this prefix, with or without a tenant before it."""
        found = [
            Match(pool, tenant)
            for pool in self._pools
            for tenant in [tenant_of(prefix, pool.spec.resource_prefix)]
            if tenant or pool.spec.resource_prefix == prefix
        ]
        return min(found, key=lambda match: self._rank(match, profile), default=None)

    def _rank(self, match: Match, profile: int) -> tuple[int, bool, bool]:
        # What is translated already must stay: it comes before a pool that is called like that.
        spelling = [self.namespace, None].index(match.tenant) if self._mine(match) else 2
        foreign = match.pool.metadata.name not in self._own
        return spelling, foreign, match.pool.spec.profile(profile) is None

    def _mine(self, match: Match) -> bool:
        return match.tenant in (self.namespace, None)


def is_ours(prefix: str) -> bool:
    """Whether the prefix is Mizar's even when no pool says so."""
    return prefix == DEFAULT_PREFIX or tenant_of(prefix, DEFAULT_PREFIX) is not None


def offered(pool: GPUPool) -> str:
    """The resources to choose from, for a person: `mizar.share/gpu.2, mizar.share/gpu.4`."""
    sizes = sorted(profile.devices for profile in pool.spec.profiles)
    return ", ".join(resource_name(pool.spec.resource_prefix, size) for size in sizes)
