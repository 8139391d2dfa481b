"""Convergence: some time after faults have stopped, everything is as it should be, and stays so."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from mizar_core.names import LABEL_IN_USE, SPOT_RESOURCE
from mizar_core.planning.spot.snapshot import UNHEARD_AFTER
from mizar_core.pod_requests import spot_cards_requested
from mizar_kube.kinds import BUDGET, GPU_POOL, GPU_QUOTA, NODE, POD, SHADOW_POD, Object
from mizar_kube.store import key_of
from simulation.replica import OFTEN_S, Replica
from simulation.rules import Broken, is_shadow
from stateful.memory_api import has_ended
from stateful.model import is_served, is_spot

if TYPE_CHECKING:
    from simulation.schedule import Schedule

LISTS_S = 1.4 * OFTEN_S
"""Seconds in which every copy is listed again, where that is done often."""
STARTED_S = 20.0
"""Seconds by which every process has come up and its watches run."""
MINUTE_S = 60.0
STEP_S = 5.0
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
    if actions := leaders[0].spot_plan().actions:
        raise Broken(f"at rest there is to do for spot pods: {actions}")
    _nothing_strays(schedule)
    _who_is_in_use_is_marked(schedule)


def _knows_everything(schedule: Schedule, replica: Replica) -> None:
    """The process' copies are what the API server has."""
    caches = replica.operator.caches
    if problems := [*replica.operator.dead(), *replica.operator.unready()]:
        raise Broken(f"{replica.name} is not well: {problems}")
    for kind, copy, trim in (
        (GPU_POOL, caches.pools, caches.pools._store._trim),
        (GPU_QUOTA, caches.quotas, caches.quotas._store._trim),
        (SHADOW_POD, caches.shadows, caches.shadows._store._trim),
        (POD, caches.holders, caches.holders._store._trim),
        (POD, caches.shares, caches.shares._store._trim),
        (POD, caches.pending, caches.pending._store._trim),
        (POD, caches.spots, lambda pod: caches.spots._store._trim(pod) if is_spot(pod) else None),
        (NODE, caches.nodes, caches.nodes._store._trim),
    ):
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


def _nobody_waits_in_vain(schedule: Schedule) -> None:
    """Share pods still wait only because of the quota, or because no card is free."""
    for pod in schedule.users.shares():
        if pod["spec"].get("nodeName"):
            continue
        namespace = pod["metadata"]["namespace"]
        if namespace == schedule.failing_planner.tenant:
            continue
        (resource,) = pod["spec"]["containers"][0]["resources"]["limits"]
        size = int(resource.rpartition(".")[2])
        if not _is_refused(schedule, namespace, size):
            raise Broken(f"{key_of(pod)} waits for {resource} in vain")


def _no_card_could_be_lent(schedule: Schedule) -> None:
    """Spot pods still wait only because of their quota, or because no node has as many cards. Those
    that no scheduler sees, one has its turn at a time, keep none from others for long."""
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
    for pod in filter(is_served, spots):
        cards, namespace = spot_cards_requested(pod["spec"]), key_of(pod)[0]
        quota = schedule.api.find(GPU_QUOTA, "quota", namespace) or {"spec": {}}
        most = (quota["spec"].get("spot") or {"max": 0})["max"]
        fits = any(count >= cards for name, count in free.items() if name)
        if _gated(pod) and fits and used[namespace] + cards <= most and not promised:
            raise Broken(f"{key_of(pod)} waits for a card in vain: {free}, {used} of {most}")


def _gated(pod: Object) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _is_refused(schedule: Schedule, namespace: str, size: int) -> bool:
    quota = schedule.api.find(GPU_QUOTA, "quota", namespace)
    if quota is None or not list(schedule.api.all(GPU_POOL)):
        return True
    own = [one for one in schedule.api.all(SHADOW_POD) if one["metadata"]["namespace"] == namespace]
    cards = _profiles_of_pool(schedule).get(size)
    most = next((one["max"] for one in quota["spec"]["profiles"] if one["devices"] == size), 0)
    if cards is None:
        return True
    same = [one for one in own if one["spec"]["devices"] == size]
    waits = [one for one in same if not _pod_of(schedule, one)["spec"].get("nodeName")]
    return (
        len(same) >= most
        or sum(one["spec"]["cards"] for one in own) + cards > quota["spec"].get("maxCards", 10**6)
        or bool(waits)
    )


def _profiles_of_pool(schedule: Schedule) -> dict[int, int]:
    """The cards of each profile that the pool has, by its devices."""
    profiles = (one for pool in schedule.api.all(GPU_POOL) for one in pool["spec"]["profiles"])
    return {one["devices"]: one["cards"] for one in profiles}


def _pod_of(schedule: Schedule, shadow: Object) -> Object:
    namespace, name = key_of(shadow)
    return schedule.api.find(POD, name, namespace) or {"spec": {}}


def _only_the_minimum_is_left(schedule: Schedule) -> None:
    have = Counter((key_of(one)[0], one["spec"]["devices"]) for one in schedule.api.all(SHADOW_POD))
    offered = _profiles_of_pool(schedule)
    wanted: Counter[tuple[str, int]] = Counter()
    for quota in schedule.api.all(GPU_QUOTA):
        if "maxCards" in quota["spec"]:
            continue
        for one in quota["spec"]["profiles"]:
            least = one["min"] if one["devices"] in offered else 0
            wanted[quota["metadata"]["namespace"], one["devices"]] = least
    capped = {
        one["metadata"]["namespace"]
        for one in schedule.api.all(GPU_QUOTA)
        if "maxCards" in one["spec"]
    }
    for key in {*have, *wanted}:
        if key[0] in (*capped, schedule.failing_planner.tenant):
            continue
        if have[key] != wanted[key]:
            raise Broken(f"without share pods {have[key]} of {key} are left, not {wanted[key]}")
