"""The API server as the node agent sees it: the pods of its node, statuses that it writes, and a
watch that is late, stops while the API server is away, and lists again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random

from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.planning.snapshot import Counts
from mizar_nodeagent.pods import Key, Pod

Listener = Callable[[Pod | None, Pod | None], None]


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


class Api:
    """`pods`: those of the node. `reports`: the status of each ShadowPod, by its pod's UID. `node`:
    counts in the node's status. `away_until`: when it answers again."""

    def __init__(self) -> None:
        self.pods: dict[Key, Pod] = {}
        self.reports: dict[str, Report] = {}
        self.node: dict[str, Counts] = {}
        self.away_until = 0.0

    @property
    def is_away(self) -> bool:
        return now() < self.away_until

    def put(self, pod: Pod) -> None:
        """Create or change a pod."""
        self.pods[pod.key] = pod

    def change(self, uid: str, **changes: object) -> None:
        """Change a pod, if there still is one of that UID."""
        if pod := self.by_uid(uid):
            self.pods[pod.key] = replace(pod, **changes)  # type: ignore[arg-type]

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        if pod := self.by_uid(uid):
            del self.pods[pod.key]

    def by_uid(self, uid: str) -> Pod | None:
        return next((pod for pod in self.pods.values() if pod.uid == uid), None)


class Watch:
    """Has the parts of Informer[Pod] that the agent uses. `lag`: seconds that it is late."""

    def __init__(self, api: Api, random: Random, lag: float) -> None:
        self.synced = asyncio.Event()
        self.lag = lag
        self._api = api
        self._random = random
        self._known: dict[Key, Pod] = {}
        self._heard_at = now()
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> None:
        """As Informer.on_change."""
        self._listeners.append(listener)

    def items(self) -> list[tuple[Key, Pod]]:
        """As Informer.items."""
        return list(self._known.items())

    def values(self) -> list[Pod]:
        """As Informer.values."""
        return list(self._known.values())

    def get(self, name: str, namespace: str = "") -> Pod | None:
        """As Informer.get."""
        return self._known.get((namespace, name))

    def age(self) -> float:
        """As Informer.age."""
        return now() - self._heard_at

    def problem(self) -> str | None:
        """As Informer.problem."""
        return None if self.synced.is_set() and self.age() < 180 else "not now"

    async def run(self) -> None:
        """Follow the API server for ever."""
        while True:
            await asyncio.sleep(self.lag * (0.5 + self._random.random()))
            if self._api.is_away:
                continue
            self._heard_at = now()
            self._take(dict(self._api.pods), listed=self._random.random() < 0.2)
            self.synced.set()

    def _take(self, pods: Mapping[Key, Pod], listed: bool) -> None:
        """Tell of each change; a list tells of a pod that replaced another as of one change."""
        for key in sorted(self._known.keys() | pods.keys()):
            old, new = self._known.get(key), pods.get(key)
            if old == new:
                continue
            replaced = old is not None and new is not None and old.uid != new.uid
            steps = [(old, None), (None, new)] if replaced and not listed else [(old, new)]
            for before, after in steps:
                self._tell(key, before, after)

    def _tell(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            del self._known[key]
        else:
            self._known[key] = new
        for listener in self._listeners:
            listener(old, new)


class NodeStatus:
    """Has the parts of NodeStatusWriter that the agent uses."""

    def __init__(self, api: Api, random: Random, changed: Callable[[], None]) -> None:
        self._api = api
        self._random = random
        self._changed = changed
        self._wanted: dict[str, Counts] = {}
        self._rewrite: frozenset[str] = frozenset()
        self.written: dict[str, Counts] = {}
        self.written_at: dict[str, float] = {}

    def set_desired(
        self, counts: Mapping[str, Counts], rewrite: frozenset[str] = frozenset()
    ) -> None:
        """As NodeStatusWriter.set_desired."""
        self._wanted, self._rewrite = dict(counts), rewrite

    def forget(self, resource: str) -> None:
        """As NodeStatusWriter.forget."""
        self.written.pop(resource, None)

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.sleep(self._random.choice((0.1, 0.4)))
            began = now()
            due = {
                one: counts
                for one, counts in self._wanted.items()
                if counts != self.written.get(one) or one in self._rewrite
            }
            if not due or self._api.is_away:
                continue
            await asyncio.sleep(self._random.choice((0.005, 0.1)))
            if self._api.is_away:
                continue
            for resource, one in due.items():
                self._api.node[resource] = one
                self.written[resource] = one
                self.written_at[resource] = began
            self._changed()


class Statuses:
    """Has the parts of ShadowStatusWriter that the agent uses."""

    def __init__(self, api: Api, random: Random) -> None:
        self._api = api
        self._random = random
        self._wanted: dict[Key, Report] = {}

    def set_desired(self, reports: Iterable[Report]) -> None:
        """As ShadowStatusWriter.set_desired."""
        self._wanted = {one.key: one for one in reports}

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.sleep(self._random.choice((0.1, 0.2, 0.7)))
            if not self._api.is_away:
                for one in self._wanted.values():
                    self._api.reports[one.uid] = one
