"""The pools and quotas of a schedule, and what administrators change about them: one pool, or two,
each with a prefix and quotas of its own, on the same nodes or on nodes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from mizar_core.names import DEFAULT_PREFIX
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, Object
from simulation.cluster import Cluster

SIZES = (2, 4)
ZONES = ("a", "b")
IDLE_TIMEOUT_S = 20
OTHER_PREFIX = "cards.example"
PREFIXES = (OTHER_PREFIX, f"team-b.{DEFAULT_PREFIX}")
"""The second pool's: the latter looks as if it were the first pool's for a tenant."""


@dataclass(frozen=True)
class Drawn:
    """A pool of the schedule. `sizes`: the profiles that its quotas have."""

    name: str
    prefixes: tuple[str, ...]
    sizes: tuple[int, ...] = SIZES
    selector: tuple[tuple[str, str], ...] = ()
    tenancy: str = "PerNamespace"


def drawn(random: Random) -> tuple[Drawn, ...]:
    """The pools of a schedule."""
    here, there = random.choice((((), ()), ((), ()), (_zone(0), _zone(1)), ((), _zone(1))))
    kind = random.choice(("one", "one", "two", "two", "shared", "same prefix"))
    if kind == "one":
        return (Drawn("pool", (DEFAULT_PREFIX,), selector=random.choice(((), (), here))),)
    first = Drawn("pool", (DEFAULT_PREFIX,), selector=here)
    if kind == "two":
        return first, Drawn("other", PREFIXES, selector=there)
    if kind == "shared":
        return first, Drawn("other", (OTHER_PREFIX,), selector=there, tenancy="Shared")
    # In a namespace, quotas of pools with one prefix must not have the same profile.
    size, another = random.sample(SIZES, 2)
    return (
        replace(first, sizes=(size,)),
        Drawn("other", first.prefixes, (another,), there),
    )


def _zone(number: int) -> tuple[tuple[str, str], ...]:
    return (("zone", ZONES[number]),)


class Pools:
    """The pools and quotas. Each act returns what was done, for the trace. `a_namespace`: draws
    one."""

    def __init__(
        self, cluster: Cluster, random: Random, namespaces: tuple[str, ...], nodes: tuple[str, ...]
    ) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._random = random
        self._namespaces = namespaces
        self._zones = dict(zip(nodes, ZONES, strict=True))
        self._drawn = drawn(random)
        self._prefixes: dict[str, str] = {}

    def prepare(self) -> Iterator[str]:
        """Create the pools and quotas that exist at the start, and label the nodes."""
        for node in self._zones:
            self.label(node)
        for pool in self._drawn:
            yield self._add_pool(pool)
        for namespace in self._namespaces:
            first = self._random.choice(self._drawn)
            for pool in self._drawn:
                if pool == first or self._random.random() < 0.6:
                    yield self._change_quota_of(namespace, pool)

    def acts(self, a_namespace: Callable[[], str]) -> dict[Callable[[], str], int]:
        """Each act, and how often it is drawn."""
        found: dict[Callable[[], str], int] = {
            lambda: self._change_quota(a_namespace()): 3,
            self._delete_quota: 1,
            self._drop_profile: 1,
            self._change_pool: 1,
            self._reshape_pool: 2,
            self._select_nodes: 1,
            self._delete_or_add_pool: len(self._drawn),
        }
        if len(self._drawn) > 1:
            found[lambda: self._move_quotas(a_namespace())] = 2
        return found

    def label(self, node: str) -> None:
        """Label a new node as its predecessor was at the start."""
        if (obj := self._api.find(NODE, node)) is not None:
            obj["metadata"]["labels"]["zone"] = self._zones[node]
            self._api.touch(obj)

    def a_resource(self, namespace: str) -> tuple[str, int]:
        """A resource that share pods of the namespace may request, and the devices of its profile;
        mostly of a pool that the namespace has a quota of."""
        own = [one for one in self._drawn if self._quota_of(namespace, one.name) is not None]
        pool = self._random.choice(own if own and self._random.random() < 0.9 else self._drawn)
        size = self._random.choice(pool.sizes)
        tenant = "" if pool.tenancy == "Shared" else f"{namespace}."
        return f"{tenant}{self._prefixes[pool.name]}/gpu.{size}", size

    # Quotas.

    def _change_quota(self, namespace: str) -> str:
        return self._change_quota_of(namespace, self._random.choice(self._drawn))

    def _change_quota_of(self, namespace: str, pool: Drawn) -> str:
        random, quota = self._random, self._quota_of(namespace, pool.name)
        name = quota["metadata"]["name"] if quota else self._free_name(namespace)
        most = random.choice((0, 1, 1, 2, 3))
        least = min(most, random.choice((0, 0, 0, 1)))
        more: Object = {"maxCards": random.choice((1, 2, 3))} if random.random() < 0.25 else {}
        if random.random() < 0.8:
            more["spot"] = {"max": random.choice((0, 1, 2, 4))}
        profiles = [{"devices": size, "min": least, "max": most} for size in pool.sizes]
        self._cluster.add_quota(namespace, profiles, name, pool=pool.name, **more)
        return f"{name} of {namespace} for {pool.name}: {least} to {most} {more}"

    def _free_name(self, namespace: str) -> str:
        names = ("quota", "second")
        return next(one for one in names if self._api.find(GPU_QUOTA, one, namespace) is None)

    def _quota_of(self, namespace: str, pool: str) -> Object | None:
        return next((one for one in self._quotas(namespace) if one["spec"]["pool"] == pool), None)

    def _quotas(self, namespace: str) -> list[Object]:
        return [q for q in self._api.all(GPU_QUOTA) if q["metadata"]["namespace"] == namespace]

    def _move_quotas(self, namespace: str) -> str:
        """The pool of a quota cannot be changed: each quota is deleted, and one for the other pool
        is made under its name."""
        found = self._quotas(namespace)
        for quota in found:
            self._api.start_delete(quota)
        for quota in found:
            pool = next(one for one in self._drawn if one.name != quota["spec"]["pool"])
            profiles = [
                {**profile, "devices": size}
                for profile, size in zip(quota["spec"]["profiles"], pool.sizes, strict=False)
            ]
            spec = {**quota["spec"], "pool": pool.name, "profiles": profiles}
            self._cluster.add_quota(namespace, name=quota["metadata"]["name"], **spec)
        return f"move {len(found)} quotas of {namespace} to another pool"

    def _delete_quota(self) -> str:
        quotas = list(self._api.all(GPU_QUOTA))
        if not quotas:
            return self._change_quota(self._random.choice(self._namespaces))
        quota = self._random.choice(quotas)
        self._api.start_delete(quota)
        return f"delete quota {quota['metadata']['namespace']}/{quota['metadata']['name']}"

    def _drop_profile(self) -> str:
        quotas = list(self._api.all(GPU_QUOTA))
        if not quotas:
            return "no profile to drop"
        quota = self._random.choice(quotas)
        profiles = quota["spec"]["profiles"]
        self._change(quota, {"profiles": profiles[1:] or profiles})
        return f"drop a profile of {quota['metadata']['namespace']}/{quota['metadata']['name']}"

    # Pools.

    def _add_pool(self, pool: Drawn) -> str:
        self._prefixes[pool.name] = prefix = self._random.choice(pool.prefixes)
        self._cluster.add_pool(
            pool.name,
            resourcePrefix=prefix,
            tenancy=pool.tenancy,
            nodeSelector=dict(pool.selector),
            idleTimeoutSeconds=IDLE_TIMEOUT_S,
        )
        return f"create {pool.name} ({pool.tenancy}) with prefix {prefix}"

    def _delete_or_add_pool(self) -> str:
        pool = self._random.choice(self._drawn)
        if (obj := self._api.find(GPU_POOL, pool.name)) is None:
            return self._add_pool(pool)
        self._api.start_delete(obj)
        return f"delete {pool.name}"

    def _change_pool(self) -> str:
        return self._edit(idleTimeoutSeconds=self._random.choice((5, IDLE_TIMEOUT_S)))

    def _reshape_pool(self) -> str:
        random = self._random
        kept = SIZES if random.random() < 0.7 else (random.choice(SIZES),)
        profiles = [{"devices": size, "cards": random.choice((1, 1, 2))} for size in kept]
        return self._edit(profiles=profiles)

    def _select_nodes(self) -> str:
        zone = {"zone": self._random.choice(ZONES)}
        return self._edit(nodeSelector=self._random.choice(({}, zone)))

    def _edit(self, **spec: object) -> str:
        pools = list(self._api.all(GPU_POOL))
        if not pools:
            return "no pool to edit"
        pool = self._random.choice(pools)
        self._change(pool, spec)
        return f"edit {pool['metadata']['name']}: {spec}"

    def _change(self, obj: Object, spec: Object) -> None:
        obj["spec"] |= spec
        obj["metadata"]["generation"] += 1
        self._api.touch(obj)
