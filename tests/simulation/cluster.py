"""Kubernetes around the operator, each part at its own pace: scheduler, kubelets, node agents,
controllers. What each does is the model's (`stateful.model`); when it does it is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from mizar_core.model_base import format_time
from mizar_kube.kinds import NODE, POD, SHADOW_POD, Object
from mizar_kube.store import key_of
from simulation.history import HistoryApi
from stateful.model import PODS_COLLECTED_AFTER, Carved, Model, NodeState

EVICTED_AFTER_S = 40.0
"""Seconds for which pods tolerate a node that does not answer."""
SETTLED = 2
"""Looks in a row that change nothing, after which a part waits for a change."""


class Cluster(Model):
    """The model in the loop's time. `pace`: seconds that a part takes to look again, on average."""

    api: HistoryApi

    def __init__(self, random: Random, pace: float) -> None:
        self._second: datetime | None = None
        super().__init__(HistoryApi())
        self.random = random
        self.pace = pace
        self.down: set[str] = set()
        self.silent: dict[str, float] = {}
        """Nodes whose kubelets do not answer, and since when."""
        self._ticked = 0.0
        self._reported: dict[str, float] = {}

    def tick(self, seconds: float) -> None:
        """Time goes by; times of day are in whole seconds."""
        self.time += timedelta(seconds=seconds)
        if (second := self.time.replace(microsecond=0)) != self._second:
            self._second, self.api.now = second, format_time(second)

    def catch_up(self) -> None:
        """The time of day follows the loop's."""
        now = asyncio.get_running_loop().time()
        if now > self._ticked:
            self.tick(now - self._ticked)
            self._ticked = now

    async def run(self, looked: Callable[[], None]) -> None:
        """All parts, for ever; `looked` is called after each look."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again(self.schedule, looked))
            tasks.create_task(self._look_again(self.control, looked))
            for node in self.nodes:
                kubelet, agent = self._kubelet_of(node), self._agent_of(node)
                tasks.create_task(self._look_again(kubelet, looked))
                tasks.create_task(self._look_again(agent, looked))

    async def _look_again(self, look: Callable[[], None], looked: Callable[[], None]) -> None:
        while True:
            quiet = 0
            while quiet < SETTLED:
                await asyncio.sleep(self.random.expovariate(1 / self.pace))
                self.catch_up()
                before = self.api.version
                look()
                looked()
                quiet = quiet + 1 if self.api.version == before else 0
            await self.api.changed()

    def _kubelet_of(self, node: str) -> Callable[[], None]:
        def look() -> None:
            if self.api.find(NODE, node) is not None and node not in self.silent:
                before = dict(self.nodes[node].held), dict(self.nodes[node].cards)
                self.kubelet(node)
                if before != (self.nodes[node].held, self.nodes[node].cards):
                    # The node agent asks the kubelet, not the API server, who holds what.
                    self.wake()

        return look

    def _allocate(self, state: NodeState, uid: str, resource: str, count: int) -> bool:
        """Allocate as the model does; then the node agent refuses to start a pod that got a device
        of a shadow pod whose own pod is gone."""
        there = {pod["metadata"]["uid"] for pod in self.api.all(POD)}
        before = dict(state.held)
        if not super()._allocate(state, uid, resource, count):
            return False
        new = state.held.keys() - before.keys()
        if all(state.carved[one[:2]].uid in there for one in new):
            return True
        state.held = before
        return False

    def _agent_of(self, node: str) -> Callable[[], None]:
        def look() -> None:
            if node not in self.down and node not in self.silent:
                self.agent(node)

        return look

    def wake(self) -> None:
        """Something has changed that the API server does not report: every part looks again."""
        self.api.poke()

    # The node agent's reports are delayed, too, but each shadow pod's stay in order.

    def _write_report(
        self, shadow: Object, carved: Carved, devices: list[Object], node: str
    ) -> None:
        loop, uid = asyncio.get_running_loop(), shadow["metadata"]["uid"]
        delay = self.random.expovariate(2 / self.pace)
        at = max(loop.time() + delay, self._reported.get(uid, 0.0) + 1e-6)
        self._reported[uid] = at
        key = shadow["metadata"]["name"], shadow["metadata"]["namespace"]
        loop.call_at(at, self._report_arrives, key, uid, replace(carved), devices, node)

    def _report_arrives(
        self, key: tuple[str, str], uid: str, carved: Carved, devices: list[Object], node: str
    ) -> None:
        shadow = self.api.find(SHADOW_POD, *key)
        if shadow is not None and shadow["metadata"]["uid"] == uid:
            self.catch_up()
            super()._write_report(shadow, carved, devices, node)

    def unregister(self, node: str) -> Object | None:
        """As the model does. Kubernetes looks for the pods that are left after a while."""
        loop = asyncio.get_running_loop()
        loop.call_later(PODS_COLLECTED_AFTER.total_seconds() + 1, self.wake)
        return super().unregister(node)

    def cordon(self, node: str, unschedulable: bool) -> None:
        """kubectl cordon and uncordon."""
        obj = self.api.find(NODE, node)
        if obj is not None:
            obj["spec"]["unschedulable"] = unschedulable
            self.api.touch(obj)

    def silence(self, node: str, silent: bool) -> None:
        """The node's network fails, or works again. Kubernetes deletes its pods after a while."""
        loop = asyncio.get_running_loop()
        self.silent.pop(node, None)
        if silent:
            self.silent[node] = loop.time()
            loop.call_later(EVICTED_AFTER_S, self._evict_from, node, loop.time())
        if (obj := self.api.find(NODE, node)) is not None:
            ready = "Unknown" if silent else "True"
            obj["status"]["conditions"] = [{"type": "Ready", "status": ready}]
            self.api.touch(obj)

    def _evict_from(self, node: str, since: float) -> None:
        if self.silent.get(node) != since:
            return
        self.catch_up()
        for pod in list(self.pods_on(node)):
            self.lost.add(key_of(pod))
            self.api.start_delete(pod)

    def end_namespace(self, namespace: str) -> None:
        """kubectl delete namespace; somebody creates it again as soon as it is gone."""
        self.api.ending.add(namespace)
        for obj in list(self.api.objects.values()):
            if obj["metadata"].get("namespace") == namespace:
                if obj["kind"] == "Pod":
                    self.lost.add(key_of(obj))
                self.api.start_delete(obj)

    def control(self) -> None:
        """As the model does; and a namespace that is being deleted is gone when it is empty."""
        super().control()
        left = (one for one in self.api.objects.values() if one["kind"] != "Event")
        self.api.ending &= {one["metadata"].get("namespace") for one in left}
