"""Chooses the pool whose sizes a container requests. Pure.

Several pools may have a size of the same name, such as nvidia.com/gpumem, with other cards and
units: the quotas of the pod's namespace decide between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from mizar_core.models import GPUPool, Profile
from mizar_core.names import resource_name
from mizar_core.pod_requests import whole_count
from mizar_operator.webhook.resource_names import VisiblePools


class Near(IntEnum):
    """How near a pool is to a namespace."""

    OWN = 0
    """A quota of the namespace names it."""
    SHARED = 1
    """All namespaces share its devices."""
    DEFAULT = 2
    """It gives namespaces a quota that have none."""
    OTHER = 3


@dataclass(frozen=True)
class PoolSizes:
    """The sizes of the pool that is nearest to the namespace. `units`: by a size's name, its
    profile and how many units of it one device has. `rivals`: the names of other pools that have
    the same sizes and are as near."""

    pool: GPUPool
    units: Mapping[str, tuple[Profile, int]]
    near: Near
    rivals: tuple[str, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether the pool's devices are for the namespace, whatever other pools there are."""
        return self.near in (Near.OWN, Near.SHARED)

    def resource(self, name: str) -> str:
        """The resource of a size's devices, without a tenant."""
        return resource_name(self.pool.spec.resource_prefix, self.units[name][0].devices)

    def devices(self, name: str, amount: str) -> int:
        """How many devices this amount of a size needs."""
        return -(-whole_count(amount) // self.units[name][1])

    def most(self, name: str) -> int:
        """The amount of a size that all devices of a card have."""
        profile, units = self.units[name]
        return units * (profile.devices // profile.cards)


def nearest(names: Collection[str], pools: VisiblePools) -> PoolSizes | None:
    """The nearest of the pools that have all of these sizes, the first by name of several; None if
    no pool has them all."""
    found = [pool for pool in pools.all if set(names) <= {one.name for one in pool.spec.sizes}]
    if not found:
        return None
    near = min(_near(pool, pools) for pool in found)
    pool, *rivals = [one for one in found if _near(one, pools) == near]
    units = {
        one.name: (profile, one.units_per_device)
        for one in pool.spec.sizes
        if (profile := pool.spec.profile(one.devices))
    }
    return PoolSizes(pool, units, near, tuple(one.metadata.name for one in rivals))


def _near(pool: GPUPool, pools: VisiblePools) -> Near:
    if pools.is_own(pool):
        return Near.OWN
    if pool.spec.tenancy == "Shared":
        return Near.SHARED
    return Near.DEFAULT if pool.spec.default_quota else Near.OTHER
