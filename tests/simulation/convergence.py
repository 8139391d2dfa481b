"""Convergence: some time after faults have stopped, everything is as it should be, and stays so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mizar_core.model_base import parse_time
from mizar_core.names import LABEL_IN_USE, SPOT_RESOURCE
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.creation_checks import MOVE_TURN
from mizar_core.planning.spot.next_borrowers import PATIENCE
from mizar_core.planning.spot.snapshot import UNHEARD_AFTER
from mizar_core.pod_requests import devices_requested, spot_cards_requested
from mizar_kube.kinds import BUDGET, GPU_POOL, GPU_QUOTA, NODE, POD, SHADOW_POD, Kind, Object
from mizar_kube.store import StoreReader, key_of
from simulation.replica import OFTEN_S, Replica
from simulation.rules import Broken, is_shadow
from stateful.memory_api import has_ended
from stateful.model import CARDS_PER_NODE, is_served, is_spot

if TYPE_CHECKING:
    from simulation.schedule import Schedule

LISTS_S = 1.4 * OFTEN_S
"""Seconds in which every copy is listed again, where that is done often."""
STARTED_S = 70.0
"""Seconds by which every process has come up, and its watches run and have brought a bookmark: they
are begun again after up to half a minute where several in a row have broken."""
MINUTE_S = 60.0
STEP_S = 5.0
TURNS = 8
"""Turns and pauses in which each of two resources is moved twice."""
_Shape = tuple[str, str, str, int]
"""(namespace, quota, pool, devices)."""
PATIENCE_S = 600.0


async def settles(schedule: Schedule) -> None:
    """Let the cluster converge twice: with the share pods that are left, and without any. Raises
    Broken."""
    schedule.tell("rest")
    schedule.faults.stop()
    schedule.users.relent()
    for replica in schedule.replicas:
        replica.calm()
    await schedule.sleep(STARTED_S)
    for replica in schedule.replicas:
        await replica.list_again()
    await _quiet(schedule, LISTS_S)
    await _is_right(schedule)
    await _turns_pass(schedule)
    _nobody_waits_in_vain(schedule)
    await _promises_lapse(schedule)
    _no_card_could_be_lent(schedule)
    schedule.users.leave()
    await _quiet(schedule, MINUTE_S)
    await _is_right(schedule)
    _only_the_minimum_is_left(schedule)


async def _quiet(schedule: Schedule, seconds: float) -> None:
    """Wait until the operator has written nothing for that long."""
    spent = quiet = 0.0
    while quiet < seconds:
        before = schedule.writes
        await schedule.sleep(STEP_S)
        spent += STEP_S
        quiet = quiet + STEP_S if schedule.writes == before else 0.0
        if spent > PATIENCE_S:
            raise Broken(f"the operator still writes after {spent:.0f} s")


async def _turns_pass(schedule: Schedule) -> None:
    """Wait until the devices of share pods that need several resources could come to one node: the
    resources are moved in turns."""
    several = (one for one in schedule.users.shares() if len(devices_requested(one["spec"])) > 1)
    if any(not one["spec"].get("nodeName") for one in several):
        await schedule.sleep(TURNS * MOVE_TURN.total_seconds())
        await _quiet(schedule, LISTS_S)


async def _promises_lapse(schedule: Schedule) -> None:
    """Wait until cards that were promised to pods which no scheduler sees have gone to others."""
    if not all(is_served(one) for one in schedule.api.all(POD)):
        await schedule.sleep(UNHEARD_AFTER.total_seconds() + STARTED_S)


async def _is_right(schedule: Schedule) -> None:
    leaders = [one for one in schedule.replicas if one.leads]
    if len(leaders) != 1:
        raise Broken(f"{len(leaders)} replicas lead")
    for replica in schedule.replicas:
        _knows_everything(schedule, replica)
    for key, planned in (await leaders[0].plans()).items():
        if planned.actions and schedule.failing_planner.tenant is None:
            raise Broken(f"at rest there is to do for {key!r}: {planned.actions}")
    if unsettled := schedule.failing_planner.unsettled:
        raise Broken(f"plans disagreed with themselves about {sorted(unsettled)}")
    # Whose turn is next follows from what tenants have had of late, which changes with time alone.
    spot = leaders[0].spot_plan().actions
    if actions := [one for one in spot if not isinstance(one, EmitEvent)]:
        raise Broken(f"at rest there is to do for spot pods: {actions}")
    _nothing_strays(schedule)
    _who_is_in_use_is_marked(schedule)
    if schedule.failing_planner.tenant is None:
        _statuses_count_right(schedule)


def _knows_everything(schedule: Schedule, replica: Replica) -> None:
    """The process' copies are what the API server has."""
    caches = replica.operator.caches
    if problems := [*replica.operator.dead(), *replica.operator.unready()]:
        raise Broken(f"{replica.name} is not well: {problems}")
    known: list[tuple[Kind, StoreReader[Any], Callable[[Any], Any]]] = [
        (GPU_POOL, caches.pools, caches.pools._store._trim),
        (GPU_QUOTA, caches.quotas, caches.quotas._store._trim),
        (SHADOW_POD, caches.shadows, caches.shadows._store._trim),
        (POD, caches.holders, caches.holders._store._trim),
        (POD, caches.shares, caches.shares._store._trim),
        (POD, caches.pending, caches.pending._store._trim),
        (POD, caches.spots, lambda pod: caches.spots._store._trim(pod) if is_spot(pod) else None),
        (NODE, caches.nodes, caches.nodes._store._trim),
        *((one._watched.kind, one, one._store._trim) for one in caches.dra._copies),
    ]
    for kind, copy, trim in known:
        wanted = [trim(json.loads(json.dumps(one))) for one in schedule.api.all(kind)]
        missing = [one for one in wanted if one is not None and one not in copy.values()]
        stray = [one for one in copy.values() if one not in wanted]
        if missing or stray:
            raise Broken(f"{replica.name} does not know of\n{missing}\nand believes in\n{stray}")


def _nothing_strays(schedule: Schedule) -> None:
    """Every shadow pod has its pod, and every pod its shadow pod; nothing is being deleted."""
    spared = schedule.failing_planner.tenant
    shadows = {
        key_of(one): one
        for one in schedule.api.all(SHADOW_POD)
        if one["metadata"]["namespace"] != spared
    }
    pods = {
        key_of(one): one
        for one in schedule.api.all(POD)
        if is_shadow(one) and one["metadata"]["namespace"] != spared
    }
    in_use = {key for key in shadows if schedule.cluster.holders(*key)}
    # A shadow pod that lost its cards stays until no pod holds its devices any more.
    if set(pods) - set(shadows) or set(shadows) - set(pods) - in_use:
        raise Broken(f"ShadowPods {sorted(shadows)}, pods {sorted(pods)}")
    for kind, found in ((SHADOW_POD, shadows), (POD, pods)):
        leaving = [key for key, one in found.items() if "deletionTimestamp" in one["metadata"]]
        if set(leaving) - in_use:
            raise Broken(f"{kind.plural} never go: {leaving}")


def _who_is_in_use_is_marked(schedule: Schedule) -> None:
    """So that nothing evicts it; a namespace without shadow pods has no budget."""
    budgets = {one["metadata"]["namespace"] for one in schedule.api.all(BUDGET)}
    for shadow in schedule.api.all(SHADOW_POD):
        key, pod = key_of(shadow), _pod_of(schedule, shadow)
        if "metadata" not in pod or "deletionTimestamp" in pod["metadata"]:
            continue
        held = bool(schedule.cluster.holders(*key))
        marked = pod["metadata"]["labels"].get(LABEL_IN_USE) == "true"
        wrong = marked != held or (held and key[0] not in budgets)
        if wrong and key[0] != schedule.failing_planner.tenant:
            raise Broken(f"{key} in use: {held}, marked: {marked}, budgets of {sorted(budgets)}")
    if stray := budgets - {key_of(one)[0] for one in schedule.api.all(SHADOW_POD)}:
        raise Broken(f"{sorted(stray)} have budgets and no shadow pods")


def _statuses_count_right(schedule: Schedule) -> None:
    """A pool counts the cards of its nodes, and those that its own shadow pods hold there; a quota
    those that its shadow pods hold or wait for."""
    shadows = list(schedule.api.all(SHADOW_POD))
    for pool in schedule.api.all(GPU_POOL):
        name, selector = key_of(pool)[1], pool["spec"]["nodeSelector"].items()
        nodes = [n for n in schedule.api.all(NODE) if selector <= n["metadata"]["labels"].items()]
        places = {key_of(one)[1] for one in nodes}
        own = [one for one in shadows if one["spec"]["pool"] == name]
        held = [one for one in own if _pod_of(schedule, one)["spec"].get("nodeName") in places]
        wanted = sum(one["spec"]["cards"] for one in held), CARDS_PER_NODE * len(nodes)
        if (found := pool["status"]["cards"])["held"] != wanted[0] or found["total"] != wanted[1]:
            raise Broken(f"{name} counts {found}, there are {wanted}")
    for quota in schedule.api.all(GPU_QUOTA):
        cards = sum(one["cards"] for one in _shadows_of(schedule, quota))
        if quota["status"]["cards"] != cards:
            raise Broken(f"{key_of(quota)} counts {quota['status']['cards']} cards, not {cards}")


def _shadows_of(schedule: Schedule, quota: Object) -> list[Object]:
    """The specs of the shadow pods that count against the quota. Those of a pool with another
    prefix are left from an earlier quota of that name."""
    (namespace, name), prefix = key_of(quota), _prefix_of(schedule, quota["spec"]["pool"])
    return [
        one["spec"]
        for one in schedule.api.all(SHADOW_POD)
        if (key_of(one)[0], one["spec"]["quota"]) == (namespace, name)
        and _prefix_of(schedule, one["spec"]["pool"]) == prefix
    ]


def _nobody_waits_in_vain(schedule: Schedule) -> None:
    """Share pods still wait only because of the quota, or because no card is free."""
    for pod in schedule.users.shares():
        if pod["spec"].get("nodeName"):
            continue
        namespace = pod["metadata"]["namespace"]
        if namespace == schedule.failing_planner.tenant:
            continue
        quotas, asked = _quotas(schedule, namespace), devices_requested(pod["spec"])
        refused = [all(_is_refused(schedule, one, name) for one in quotas) for name in asked]
        if not any(refused):
            raise Broken(f"{key_of(pod)} waits for {asked} in vain")


def _no_card_could_be_lent(schedule: Schedule) -> None:
    """Spot pods still wait only because of their quota, because no node has as many cards, or since
    cards are kept for a pod that wants several. Pods that no scheduler sees, of which one has its
    turn at a time, keep none from others for long."""
    free: Counter[str] = Counter()
    used: Counter[str] = Counter()
    spots = [one for one in schedule.api.all(POD) if is_spot(one) and not has_ended(one)]
    for node in schedule.api.all(NODE):
        free[key_of(node)[1]] = int(node["status"]["allocatable"].get(SPOT_RESOURCE, 0))
    given_up = [one for one in spots if not _gated(one) and schedule.rules.spot.is_given_up(one)]
    spots = [one for one in spots if one not in given_up]
    for pod in spots:
        cards = spot_cards_requested(pod["spec"])
        free[pod["spec"].get("nodeName", "")] -= cards
        used[key_of(pod)[0]] += 0 if pod["spec"].get("schedulingGates") else cards
    promised = any(not one["spec"].get("nodeName") for one in spots if not _gated(one))
    promised = promised or any(_keeps_cards(schedule, one) for one in spots)
    for pod in filter(is_served, spots):
        cards, namespace = spot_cards_requested(pod["spec"]), key_of(pod)[0]
        spot = (one["spec"].get("spot") or {} for one in _quotas(schedule, namespace))
        most = sum(one.get("max", 0) for one in spot)
        fits = any(count >= cards for name, count in free.items() if name)
        if _gated(pod) and fits and used[namespace] + cards <= most and not promised:
            raise Broken(f"{key_of(pod)} waits for a card in vain: {free}, {used} of {most}")


def _keeps_cards(schedule: Schedule, pod: Object) -> bool:
    """Whether the pod has waited for long for several cards that some node lends, in use or not."""
    cards = spot_cards_requested(pod["spec"])
    lent = (one["status"]["allocatable"].get(SPOT_RESOURCE, 0) for one in schedule.api.all(NODE))
    waited = parse_time(schedule.api.now) - parse_time(pod["metadata"]["creationTimestamp"])
    several = cards > 1 and any(int(one) >= cards for one in lent)
    return is_served(pod) and _gated(pod) and several and waited >= PATIENCE


def _gated(pod: Object) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _quotas(schedule: Schedule, namespace: str) -> list[Object]:
    return [one for one in schedule.api.all(GPU_QUOTA) if key_of(one)[0] == namespace]


def _is_refused(schedule: Schedule, quota: Object, resource: str) -> bool:
    """Whether the quota allows no shadow pod for the resource, or one waits already."""
    namespace, spec = key_of(quota)[0], quota["spec"]
    size = int(resource.rpartition(".")[2])
    cards = _cards_of(schedule, spec["pool"], size)
    if cards is None or resource != _resource_of(schedule, namespace, spec["pool"], size):
        return True
    own = _shadows_of(schedule, quota)
    most = next((one["max"] for one in spec["profiles"] if one["devices"] == size), 0)
    return (
        sum(one["devices"] == size for one in own) >= most
        or sum(one["cards"] for one in own) + cards > spec.get("maxCards", 10**6)
        or _one_waits(schedule, resource)
    )


def _one_waits(schedule: Schedule, resource: str) -> bool:
    """Whether a shadow pod of the resource waits for a node: in a Shared pool, any tenant's."""
    return any(
        not _pod_of(schedule, one)["spec"].get("nodeName")
        for one in schedule.api.all(SHADOW_POD)
        if one["spec"]["devices"] == int(resource.rpartition(".")[2])
        and _prefix_of(schedule, one["spec"]["pool"]) is not None
        and resource
        == _resource_of(schedule, key_of(one)[0], one["spec"]["pool"], one["spec"]["devices"])
    )


def _prefix_of(schedule: Schedule, pool: str) -> str | None:
    obj = schedule.api.find(GPU_POOL, pool)
    return obj["spec"]["resourcePrefix"] if obj else None


def _resource_of(schedule: Schedule, namespace: str, pool: str, devices: int) -> str:
    obj = schedule.api.find(GPU_POOL, pool)
    assert obj is not None
    tenant = "" if obj["spec"]["tenancy"] == "Shared" else f"{namespace}."
    return f"{tenant}{obj['spec']['resourcePrefix']}/gpu.{devices}"


def _cards_of(schedule: Schedule, pool: str, devices: int) -> int | None:
    """The cards of the pool's profile with that many devices; None if it has none."""
    obj = schedule.api.find(GPU_POOL, pool) or {"spec": {"profiles": []}}
    profiles = obj["spec"]["profiles"]
    return next((one["cards"] for one in profiles if one["devices"] == devices), None)


def _pod_of(schedule: Schedule, shadow: Object) -> Object:
    namespace, name = key_of(shadow)
    return schedule.api.find(POD, name, namespace) or {"spec": {}}


def _only_the_minimum_is_left(schedule: Schedule) -> None:
    """Each quota without a limit on its cards has its `min` of each profile, and no more; nothing
    is left of quotas that are gone."""
    have, wanted = Counter[_Shape](), Counter[_Shape]()
    spared: set[tuple[str, str]] = set()
    for shadow in schedule.api.all(SHADOW_POD):
        spec = shadow["spec"]
        have[(*key_of(shadow)[:1], spec["quota"], spec["pool"], spec["devices"])] += 1
    for quota in schedule.api.all(GPU_QUOTA):
        (namespace, name), spec = key_of(quota), quota["spec"]
        if "maxCards" in spec:
            spared.add((namespace, name))
        for one in spec["profiles"]:
            if _cards_of(schedule, spec["pool"], one["devices"]) is not None:
                wanted[namespace, name, spec["pool"], one["devices"]] = one["min"]
    for key in {*have, *wanted}:
        if key[:2] in spared or key[0] == schedule.failing_planner.tenant:
            continue
        if have[key] != wanted[key]:
            raise Broken(f"without share pods {have[key]} of {key} are left, not {wanted[key]}")
