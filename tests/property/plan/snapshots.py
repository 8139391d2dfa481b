"""Snapshots drawn by hypothesis, with every state that objects can be in, likely or not; and
builders of their parts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from mizar_core.carve import Carve
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import shadow_name
from mizar_core.planning.node_fit import (
    HOSTNAME,
    NO_NEEDS,
    AntiAffinity,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
)
from mizar_core.planning.quotas import resource_of
from mizar_core.planning.snapshot import (
    CardsOnNode,
    NodeView,
    PendingView,
    PodView,
    Refused,
    ShadowView,
    ShareView,
    Snapshot,
    quota_key,
)
from property.plan.among import among

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NAMESPACES = ("team-a", "team-b")
SIZES = (2, 4)
ZONES = ("east", "west")
RESOURCES = tuple(f"team-a.mizar.share/gpu.{size}" for size in SIZES)
TAINTS = (Taint("team", "a", "NoSchedule"), Taint("nvidia.com/gpu", "", "NoSchedule"))
OUTAGES = frozenset({Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute")})
APART = AntiAffinity("web", HOSTNAME)
WEST = Needs(frozenset({("zone", "west")}))
NO_CARDS = (
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable",
)
"""How the scheduler refuses a shadow pod for lack of a device plugin's cards, and of a DRA
driver's."""
_cards = among(*[CardsOnNode(4, 4)] * 4, CardsOnNode(4, 3, "Tesla-T4", 15360), None)
"""Of a device plugin, a DRA driver, or none."""
TRIED = (
    *(f"carry/uid-owner/{resource}" for resource in RESOURCES),
    "room/uid-whole-0",
    "replace/uid-owner",
    "one-card/uid-owner",
    "sole-holder/uid-owner",
    "replace/uid-share-0",
)
PROFILES = [
    {"devices": 2, "cards": 1},
    {"devices": 4, "cards": 2},
]
CARVES = [
    Carve(
        resource=f"team-a.mizar.share/gpu.{n}",
        devices=n,
        cards=n // 2,
        pool="pool",
        quota="quota",
        closed=closed,
    ).to_json()
    for n in SIZES
    for closed in (False, True)
]


def at(seconds: float) -> datetime:
    """So many seconds before NOW."""
    return NOW - timedelta(seconds=seconds)


def pool(name: str = "pool", **spec: object) -> GPUPool:
    """A pool of two profiles; further fields of its spec in camelCase."""
    return GPUPool.from_dict(
        {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "GPUPool",
            "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1},
            "spec": {"profiles": PROFILES, **spec},
        }
    )


def quota(namespace: str, name: str = "quota", pool: str = "pool", **spec: object) -> GPUQuota:
    """A quota for at most two shadow pods of profile 2, unless `spec` says otherwise."""
    return GPUQuota.from_dict(
        {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "GPUQuota",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{namespace}-{name}",
                "generation": 1,
            },
            "spec": {"pool": pool, "profiles": [{"devices": 2, "max": 2}], **spec},
        }
    )


def node(name: str, zone: str = "east", cards: int = 4, available: bool = True) -> NodeView:
    """A node with cards."""
    labels = frozenset({("zone", zone), ("arch", "amd64")})
    return NodeView(name, labels, available, {"nvidia.com/gpu": CardsOnNode(cards, cards)})


def waiting(
    name: str,
    count: int = 1,
    resource: str = "team-a.mizar.share/gpu.2",
    namespace: str = "team-a",
    **fields: object,
) -> ShareView:
    """A share pod without a node."""
    share = ShareView(namespace, name, f"uid-{namespace}-{name}", resource, count, at(10))
    return replace(share, **fields)  # type: ignore[arg-type]


def shadow(
    name: str = "shadow-2-aaaaa",
    devices: int = 2,
    namespace: str = "team-a",
    pod: PodView | None = None,
    **fields: object,
) -> ShadowView:
    """A shadow pod that waits for the scheduler, unless `pod` or `fields` say otherwise."""
    made = ShadowView(
        namespace=namespace,
        name=name,
        uid=f"uid-{namespace}-{name}",
        pool="pool",
        quota="quota",
        quota_uid=f"uid-{namespace}-quota",
        resource=f"{namespace}.mizar.share/gpu.{devices}",
        devices=devices,
        cards=devices // 2,
        phase="Pending",
        pod=pod or PodView(),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def ready(name: str = "shadow-2-aaaaa", node: str = "n1", **fields: object) -> ShadowView:
    """A shadow pod whose devices are all offered and free, idle for ten seconds."""
    made = shadow(name, **fields)  # type: ignore[arg-type]
    defaults = {
        "pod": PodView(phase="Running", node=node, bound_at=at(60)),
        "node": node,
        "ready": True,
        "healthy": made.devices,
        "phase": "Ready",
        "idle_since": at(10),
    }
    return replace(made, **{**defaults, **fields})  # type: ignore[arg-type]


_pools = st.fixed_dictionaries(
    {"tenancy": st.sampled_from(["PerNamespace", "PerNamespace", "Shared"])},
    optional={
        "nodeSelector": st.sampled_from([{}, {"zone": "east"}]),
        "idleTimeoutSeconds": st.sampled_from([0, 60, 300]),
        "profiles": st.just([{"devices": 2, "cards": 1}]),
    },
)


@st.composite
def _limits(draw: st.DrawFn) -> list[dict[str, int]]:
    found = []
    for devices in draw(st.lists(among(*SIZES), min_size=1, max_size=2, unique=True)):
        most = draw(st.integers(0, 4))
        found.append({"devices": devices, "max": most, "min": draw(st.integers(0, min(2, most)))})
    return found


@st.composite
def quotas(draw: st.DrawFn, namespace: str, name: str, pools: list[str]) -> GPUQuota:
    """A quota of any limits, now and then of a pool that does not exist."""
    spec: dict[str, object] = {"profiles": draw(_limits())}
    if draw(st.booleans()):
        spec["maxCards"] = draw(st.integers(0, 5))
    made = quota(namespace, name, draw(st.sampled_from([*pools, pools[0]])), **spec)
    if draw(st.integers(0, 9)) == 0:
        meta = made.metadata.changed(deletion_timestamp=NOW)
        made = made.model_copy(update={"metadata": meta})
    return made


@st.composite
def pods(draw: st.DrawFn, nodes: list[str]) -> PodView | None:
    """A shadow pod's pod in any state; None for one that is missing."""
    kind = draw(among("none", "unbound", "stuck", "bound", "bound", "bound", "ended"))
    if kind == "none":
        return None
    deleting = draw(st.integers(0, 7)) == 0
    if kind in ("unbound", "stuck"):
        message = draw(among(*NO_CARDS)) if kind == "stuck" else None
        # Admission may have added to what was asked.
        needs, asked = draw(among((NO_NEEDS, None), (WEST, None), (WEST, NO_NEEDS)))
        return PodView(unschedulable=message, deleting=deleting, needs=needs, asked=asked)
    return PodView(
        uid="uid-pod",
        carve=draw(st.sampled_from([None, "", *CARVES])),
        phase="Failed" if kind == "ended" else "Running",
        node=draw(st.sampled_from([*nodes, *nodes, *nodes, "gone"])),
        bound_at=at(draw(among(1, 100))),
        deleting=deleting,
        overdue_at=draw(among(None, at(1), at(-60))) if deleting else None,
        drain_asked=draw(among(None, at(5), at(100))),
    )


@st.composite
def shadows(
    draw: st.DrawFn, of: GPUQuota, pool: GPUPool, sequence: int, nodes: list[str]
) -> ShadowView:
    """A shadow pod of a quota in any state, also in ones that contradict themselves."""
    devices, pod = draw(st.sampled_from(SIZES)), draw(pods(nodes))
    namespace = of.metadata.namespace or ""
    is_ready = pod is not None and pod.node is not None and draw(st.booleans())
    healthy = draw(among(devices, devices, devices, devices - 1, 0)) if is_ready else 0
    drained = draw(st.booleans())
    holder_names = draw(st.lists(among("p0", "p1", "p2"), max_size=healthy))
    holders = tuple((namespace, one) for one in holder_names)
    cut_off = holders[:1] if is_ready and draw(st.integers(0, 3)) == 0 else ()
    uid = of.metadata.uid or ""
    return ShadowView(
        namespace=namespace,
        name=shadow_name(uid, devices, sequence),
        uid=f"uid-{namespace}-{of.metadata.name}-{sequence}",
        pool=of.spec.pool,
        quota=of.metadata.name,
        quota_uid=uid,
        resource=resource_of(pool.spec, namespace, devices) or "",
        devices=devices,
        cards=devices // 2,
        sequence=sequence,
        deleting=draw(st.integers(0, 5)) == 0,
        finalizer=draw(st.integers(0, 5)) > 0,
        phase=draw(among(None, "Pending", "Ready", "Draining", "Lost")),
        node=pod.node if pod and draw(st.booleans()) else None,
        ready=is_ready,
        broken=draw(st.integers(0, 7)) == 0,
        lost=not is_ready and draw(st.integers(0, 7)) == 0,
        draining=drained or draw(st.integers(0, 5)) == 0,
        drained=drained and draw(st.booleans()),
        healthy=healthy,
        holders=holders,
        in_use=bool(holders) and draw(st.booleans()),
        idle_since=None if holders else at(draw(among(1, 100, 1000))),
        pod=pod,
        contested=draw(st.integers(0, 9)) == 0,
        lost_cards=("GPU-1",) if cut_off else (),
        on_lost_cards=cut_off,
    )


_needs = st.builds(
    Needs,
    selector=st.sampled_from(
        [
            frozenset[tuple[str, str]](),
            frozenset[tuple[str, str]](),
            frozenset({("zone", "east")}),
            frozenset({("zone", "west"), ("arch", "amd64")}),
        ]
    ),
    terms=st.sampled_from(
        [
            (),
            (),
            (Term((Requirement("zone", "In", ("east", "south")),)),),
            (
                Term((Requirement("zone", "DoesNotExist"),)),
                Term((), (Requirement("metadata.name", "NotIn", ("n1",)),)),
            ),
        ]
    ),
    tolerations=st.sampled_from(
        [
            frozenset[Toleration](),
            frozenset({Toleration("team", "Exists")}),
            frozenset({Toleration("", "Exists")}),
        ]
    ),
    anti_affinity=st.sampled_from(
        [frozenset[AntiAffinity](), frozenset[AntiAffinity](), frozenset({APART})]
    ),
)


@st.composite
def shares(draw: st.DrawFn, pools: list[GPUPool], index: int, nodes: list[str]) -> ShareView:
    """A share pod of either namespace, of either profile, bound or waiting."""
    namespace, devices = draw(among(*NAMESPACES)), draw(among(*SIZES))
    asked_of = draw(st.sampled_from(pools))
    tenant = draw(st.sampled_from([namespace, namespace, namespace, *NAMESPACES]))
    stuck, place = draw(st.booleans()), draw(st.none() | st.sampled_from(nodes))
    given_twice = place is not None and draw(st.integers(0, 3)) == 0
    return ShareView(
        namespace=namespace,
        name=f"p{index}",
        uid=f"uid-share-{index}",
        resource=resource_of(asked_of.spec, tenant, devices) or "",
        count=draw(among(1, 1, 1, 2, 3, 4, 5)),
        created=at(draw(st.integers(0, 50))),
        node=place,
        needs=draw(_needs),
        owner=draw(among("", "uid-owner")),
        of_daemon_set=draw(st.booleans()),
        unschedulable="Insufficient devices" if stuck else None,
        unschedulable_since=at(draw(among(5, 20))) if stuck else None,
        refused_by="zone" if stuck and draw(st.booleans()) else None,
        deleting=draw(st.integers(0, 5)) == 0,
        outages=draw(among(frozenset[Toleration](), OUTAGES)),
        # The scheduler does not look at a pod with a gate.
        gated=not stuck and place is None and draw(st.booleans()),
        several_cards=place is not None and draw(st.integers(0, 3)) == 0,
        given_twice=given_twice,
        gives_way=given_twice and draw(st.booleans()),
        gives_way_to=draw(among(None, (namespace, "p0"))),
    )


@st.composite
def wild_snapshots(draw: st.DrawFn, shares_max: int = 12) -> Snapshot:
    """One or two pools of a prefix, up to four quotas, three nodes, whatever else."""
    names = ["pool", "pool-2"][: draw(among(1, 1, 2))]
    pools = [pool(name, **draw(_pools)) for name in names]
    known = {one.metadata.name: one for one in pools}
    node_names = ["n1", "n2", "n3"][: draw(st.integers(1, 3))]
    nodes = [
        replace(
            node(name, draw(among(*ZONES)), available=draw(st.integers(0, 7)) > 0),
            taints=frozenset(draw(st.sets(among(*TAINTS), max_size=1))),
            cards={"nvidia.com/gpu": found} if (found := draw(_cards)) else {},
        )
        for name in node_names
    ]
    owners = [
        draw(quotas(namespace, name, [*names, "missing"]))
        for namespace in NAMESPACES
        for name in ["quota", "spare"][: draw(among(0, 1, 1, 1, 2))]
    ]
    shadow_pods = [
        draw(shadows(owner, known.get(owner.spec.pool, pools[0]), sequence, node_names))
        for owner in owners
        for sequence in range(draw(st.integers(0, 3)))
    ]
    asking = [draw(shares(pools, i, node_names)) for i in range(draw(st.integers(0, shares_max)))]
    some_nodes = st.frozensets(st.sampled_from([*node_names, "gone"]), max_size=2)
    standing = [one for one in owners if draw(st.integers(0, 9)) > 0]
    return Snapshot(
        tuple(pools),
        tuple(standing),
        tuple(shadow_pods),
        tuple(asking),
        tuple(nodes),
        refused=draw(refusals(owners)),
        free_since=draw(_free_since(node_names)),
        attempted=draw(st.frozensets(st.sampled_from(TRIED), max_size=2)),
        pending=tuple(draw(_pending(i)) for i in range(draw(st.integers(0, 2)))),
        taken=draw(st.sampled_from([{}, {("nvidia.com/gpu", "n1"): 1}])),
        silent_nodes=draw(
            st.dictionaries(st.sampled_from(node_names), st.just(at(30)), max_size=2)
        ),
        refused_nodes={
            (one.uid, one.resource): draw(some_nodes) for one in asking if draw(st.booleans())
        },
        names_taken=frozenset(one.key for one in shadow_pods if draw(st.integers(0, 9)) == 0),
        nodes_without_class=frozenset(one.name for one in nodes if not one.cards),
        dra_refusal=draw(st.sampled_from(["", "GET resourceslices: forbidden"])),
    )


@st.composite
def _pending(draw: st.DrawFn, index: int) -> PendingView:
    """A pod that waits for whole cards."""
    cards = (("nvidia.com/gpu", draw(st.integers(1, 3))),)
    name = f"whole-{index}"
    needs, unknown = draw(_needs), draw(st.booleans())
    return PendingView(
        "team-z", name, f"uid-{name}", at(index), cards, needs, reason_unknown=unknown
    )


@st.composite
def _free_since(draw: st.DrawFn, nodes: list[str]) -> dict[tuple[str, str], tuple[datetime, ...]]:
    """Since when devices have been free on some nodes; made up, as the rest is."""
    keys = [(resource, node) for resource in RESOURCES for node in nodes]
    times = st.sampled_from([at(5), at(60)])
    return draw(st.dictionaries(st.sampled_from(keys), st.tuples(times, times), max_size=4))


@st.composite
def refusals(draw: st.DrawFn, owners: list[GPUQuota]) -> tuple[Refused, ...]:
    """Now and then the API server refuses a quota's shadow pods of some profile."""
    offers = [(quota_key(one), devices) for one in owners for devices in SIZES]
    if not offers or draw(st.integers(0, 3)) > 0:
        return ()
    chosen = draw(st.sets(st.sampled_from(offers), max_size=3))
    return tuple(Refused(*one, "exceeded quota") for one in sorted(chosen))
