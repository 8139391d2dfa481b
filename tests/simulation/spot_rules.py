"""Rules about spot pods, checked when the operator's writes take effect (invariant 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from mizar_core.names import SPOT_RESOURCE
from mizar_core.planning.spot.snapshot import UNHEARD_AFTER
from mizar_core.pod_requests import spot_cards_requested
from mizar_kube.kinds import GPU_QUOTA, NODE, POD, Object, Ref
from mizar_kube.store import key_of
from simulation.cluster import Cluster
from stateful.memory_api import has_ended
from stateful.model import is_served, is_spot

REMEMBERED_S = 90.0
"""Seconds: longer than a watch may be behind, a call under way, or a process without news."""


class SpotRules:
    """Violations are reported to `broken`. What the operator may not have known yet does not
    count. `missed_s`: for how many seconds a deletion may stay unknown, since Kopf has missed it:
    until the next list."""

    missed_s = REMEMBERED_S

    def __init__(self, cluster: Cluster, broken: Callable[[str], None]) -> None:
        self._api = cluster.api
        self._broken = broken
        self._opened: dict[str, tuple[str, float]] = {}

    def writing(self, verb: str, ref: Ref, pod: Object, sender: str) -> None:
        """A write to a spot pod takes effect."""
        if verb == "patch":
            self._opening(ref, pod, sender)
        elif verb in ("evict", "delete"):
            # A call that is refused because the API server is busy looks as if a budget refused it.
            self._ending(ref, pod)
        else:
            self._broken(f"{verb} {ref}: it is somebody else's")

    def _opening(self, ref: Ref, pod: Object, sender: str) -> None:
        """The operator opened no more gates than there were lendable cards lately, nor than a quota
        allowed lately. Cards that were promised to a pod which by now is too large for any node, or
        for what the other borrowers leave, may go to smaller pods; those of one that no scheduler
        sees to others, after a while."""
        if not pod["spec"].get("schedulingGates"):
            return
        borrowers = [one for one in self._borrowers() if self._is_known(one, sender)]
        borrowers = [one for one in borrowers if not self.is_given_up(one)]
        asked = spot_cards_requested(pod["spec"])
        all_cards = sum(spot_cards_requested(one["spec"]) for one in borrowers)
        promised = [one for one in borrowers if not self._is_too_large(one, all_cards)]
        have = sum(spot_cards_requested(one["spec"]) for one in promised)
        if have + asked > (most := self._lendable()):
            self._broken(f"open {ref}: {have} of {most} lendable cards are promised")
        own = [one for one in borrowers if key_of(one)[0] == ref.namespace]
        have = sum(spot_cards_requested(one["spec"]) for one in own)
        if have + asked > (most := self._allowed(ref.namespace or "", max)):
            self._broken(f"open {ref}: its namespace has {have} of {most} cards")
        self._opened[pod["metadata"]["uid"]] = sender, asyncio.get_running_loop().time()

    def _ending(self, ref: Ref, pod: Object) -> None:
        """The pod has lost its card, or its namespace had more than its quota lately."""
        told = {one["type"] for one in pod["status"].get("conditions") or ()}
        if "DisruptionTarget" in told:
            return
        own = [one for one in self._borrowers() if key_of(one)[0] == ref.namespace]
        have = sum(spot_cards_requested(one["spec"]) for one in own)
        if have <= self._allowed(ref.namespace or "", min):
            self._broken(f"end {ref}: its namespace has {have} cards, which it may")

    def _borrowers(self) -> Iterator[Object]:
        """The spot pods that have a card or were promised one."""
        for pod in self._api.all(POD):
            gated = bool(pod["spec"].get("schedulingGates"))
            if is_spot(pod) and not gated and not has_ended(pod):
                yield pod

    def is_given_up(self, pod: Object) -> bool:
        """Whether no scheduler has looked at the pod for so long that its promise is void."""
        _, at = self._opened[pod["metadata"]["uid"]]
        waited = asyncio.get_running_loop().time() - at
        return not is_served(pod) and waited >= UNHEARD_AFTER.total_seconds()

    def _is_known(self, pod: Object, sender: str) -> bool:
        """Whether the sender must know that the gate is open: it opened it itself, or that was not
        just now."""
        opened, at = self._opened[pod["metadata"]["uid"]]
        return opened == sender or asyncio.get_running_loop().time() - at > REMEMBERED_S

    def _lendable(self) -> int:
        """The most cards that each node lent lately, promised ones included."""
        offered = self._offered(asyncio.get_running_loop().time() - REMEMBERED_S)
        return sum(max(counts) for counts in offered.values())

    def _is_too_large(self, pod: Object, all_cards: int) -> bool:
        """Whether, since its gate was opened, there was a time when no node lent as many cards as
        it wants beside those of the others there, or all nodes fewer than all borrowers have or
        want, and it had none yet lately."""
        _, at = self._opened[pod["metadata"]["uid"]]
        wants = spot_cards_requested(pod["spec"])
        least = {node: min(counts) for node, counts in self._offered(at).items()}
        left = (count - self._held_by_others(node, pod) for node, count in least.items())
        too_few = all(count < wants for count in left) or sum(least.values()) < all_cards
        return too_few and not self._is_long_bound(pod)

    def _held_by_others(self, node: str, pod: Object) -> int:
        """The cards of the node that other borrowers have: the scheduler chooses the node of each,
        and may leave no node with enough for a pod that wants several."""
        others = (one for one in self._borrowers() if key_of(one) != key_of(pod))
        there = (one for one in others if one["spec"].get("nodeName") == node)
        return sum(spot_cards_requested(one["spec"]) for one in there)

    def _is_long_bound(self, pod: Object) -> bool:
        """Whether the operator must know that the pod has a node."""
        changes = (one for one in self._api.after(POD, 0) if one.after["spec"].get("nodeName"))
        mine = (one.at for one in changes if one.after["metadata"]["uid"] == pod["metadata"]["uid"])
        bound = next(mine, None)
        return bound is not None and asyncio.get_running_loop().time() - bound > REMEMBERED_S

    def _offered(self, since: float) -> dict[str, list[int]]:
        """How many cards each node has lent and had promised since then."""
        found: dict[str, list[int]] = {}
        for change in self._api.after(NODE, 0):
            counts = found.setdefault(change.after["metadata"]["name"], [])
            if change.at < since:
                counts.clear()
            offered = change.after["status"]["allocatable"].get(SPOT_RESOURCE, "0")
            counts.append(0 if change.deleted else int(offered))
        return found

    def _allowed(self, namespace: str, pick: Callable[[list[int]], int]) -> int:
        """How many cards the namespace might have: the sum of what each of its quotas allowed
        lately, of which `pick` takes one number."""
        now = asyncio.get_running_loop().time()
        found: dict[str, list[int]] = {}
        for change in self._api.after(GPU_QUOTA, 0):
            meta = change.after["metadata"]
            if meta["namespace"] != namespace:
                continue
            lately = found.setdefault(meta["name"], [0])
            if change.at < now - (self.missed_s if change.deleted else REMEMBERED_S):
                lately.clear()
            spot = change.after["spec"].get("spot") or {"max": 0}
            going = change.deleted or "deletionTimestamp" in meta
            lately.append(0 if going else int(spot["max"]))
        return sum(map(pick, found.values()))
