"""Decides who starts if the kubelet has given a device to two containers.

The kubelet does so if it forgets a device that it is giving away (see allocate.py), and never takes
the device back. PreStartContainer names devices, and not the container that is to start: of two
containers with exactly the same devices, neither can start before the other one's pod has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from mizar_core.names import gives_way, starts_after
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.pods import Key, Pod

_REPLACING = frozenset({"DaemonSet", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""The kinds of controllers that always replace a lost pod. A Job counts the pod as failed, and so
may controllers of other kinds: the step of an Argo Workflow fails unless it may be retried."""


@dataclass(frozen=True)
class Holding:
    """A container of a pod that has not ended, and the devices that it has of a resource. `init`:
    the container ends before others of its pod get the same devices."""

    owner: Owner
    ids: frozenset[str]
    init: bool = False

    @property
    def pod(self) -> Key:
        """Namespace and name of the container's pod."""
        return self.owner.namespace, self.owner.pod


@dataclass(frozen=True)
class Sharing:
    """Devices that several containers have. `ids`: those of the container that is to start.
    `holdings`: all containers that have one of them. `pods`: their pods, as far as they are known.
    `started`: the pods of which a container has started with one of the devices."""

    ids: frozenset[str]
    holdings: tuple[Holding, ...]
    pods: Mapping[Key, Pod]
    started: frozenset[Key]

    @property
    def first(self) -> Key | None:
        """The pod that keeps the devices; None if every pod has one of them twice, or is being
        deleted."""
        able = (pod for pod in self._staying() if pod.key not in self._twice())
        return min(map(self._rank, able), default=(None,))[-1]

    @property
    def leaving(self) -> list[Key]:
        """The pods that have to go, by namespace and name, without those that are being deleted;
        empty while one of the pods is not known yet."""
        if any(one.pod not in self.pods for one in self.holdings):
            return []
        return sorted(pod.key for pod in self._staying() if pod.key != self.first)

    @property
    def first_may_start(self) -> bool:
        """Whether the container that is to start can only be the first pod's, and none of the other
        pods has ever started with the devices."""
        same = {one.pod for one in self.holdings if one.ids == self.ids}
        return same == {self.first} and self.started <= same

    def describe(self) -> str:
        """Why the container does not start, and which pod gives way, as a sentence."""
        shared = sorted(one for one in self.ids if self._is_shared(one))
        count = sum(not one.ids.isdisjoint(shared) for one in self.holdings)
        what = f"the kubelet gave {', '.join(shared)} to {count} containers"
        first, leaving = self.first, self.leaving
        if not leaving:
            return f"{what}: it starts once the other pod has ended"
        then = f", {starts_after(*first)}" if first else ""
        return (
            f"{what}: {', '.join(gives_way(*one) for one in leaving)}{then}; the operator replaces "
            "a share pod that has a controller (a Job's only while no pod of the Job runs): delete "
            "any other"
        )

    def _staying(self) -> Iterable[Pod]:
        return (pod for pod in self.pods.values() if not pod.terminating)

    def _twice(self) -> frozenset[Key]:
        """The pods that have a device twice, so that they can never start."""
        pairs = combinations((one for one in self.holdings if not one.init), 2)
        return frozenset(a.pod for a, b in pairs if a.pod == b.pod and a.ids & b.ids)

    def _rank(self, pod: Pod) -> tuple[bool, bool, bool, int, Key]:
        """The lowest rank keeps the devices: a pod that has started with one of them, then one that
        no controller replaces, then one whose controller may not replace it, then the one of the
        highest priority, then the first by name."""
        replaced = bool(pod.controller), pod.controller in _REPLACING
        return pod.key not in self.started, *replaced, -pod.priority, pod.key

    def _is_shared(self, device: str) -> bool:
        """Whether containers have the device that do not take turns."""
        having = [one for one in self.holdings if device in one.ids]
        return len({one.pod for one in having}) > 1 or sum(not one.init for one in having) > 1


def may_be_given_to_others(owner: Owner, ids: frozenset[str], slots: Iterable[Slot]) -> bool:
    """Whether the devices may have been given to containers of other pods as well, by the slots:
    each Allocate has made one. `owner`: the container that is to start."""
    known = [one for one in slots if not one.ids.isdisjoint(ids)]
    own = [one for one in known if one.owner is not None and one.owner.of_pod(owner)]
    others = [one for one in known if one not in own]
    if any(one.owner is not None and one.owner.container == owner.container for one in own):
        return bool(others)  # it restarts
    return not (len(others) == 1 and others[0].owner is None and others[0].ids == ids)


def sharing(
    ids: frozenset[str],
    holdings: Iterable[Holding],
    pods: Mapping[Key, Pod],
    slots: Iterable[Slot],
) -> Sharing | None:
    """How the devices are shared; None if one container alone has them, or only containers of one
    pod that take turns. `holdings`: the containers that have one of them. `slots`: the node's."""
    found = tuple(holdings)
    keys = {one.pod for one in found}
    if len(keys) < 2 and sum(not one.init for one in found) < 2:
        return None
    known = {key: pods[key] for key in keys & pods.keys()}
    owners = [one.owner for one in slots if one.owner is not None and one.ids & ids]
    # A slot that was lost, or is in an earlier stateDir, does not say that its container runs.
    created = {(key, name) for key, pod in known.items() for _, name in pod.container_ids}
    started = {
        one.pod
        for one in found
        if (one.pod, one.owner.container) in created
        or any(owner.of_pod(one.owner) for owner in owners)
    }
    return Sharing(ids, found, known, frozenset(started))
