"""Whatever happens to the objects and the connection, the copy ends up true, and so does what the
listeners heard."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from mizar_kube.client import KubeClient, Listing, WatchEvent
from mizar_kube.errors import Gone, Unavailable
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import POD, Object
from support.effort import effort
from unit.kube.fake_api import pod

NAMES = "abc"
OBJECT_STEPS = ("set", "delete", "replace")
CONNECTION_STEPS = ("cut", "compact", "bookmark", "let it read", "observe")

step = st.tuples(
    st.sampled_from(OBJECT_STEPS + CONNECTION_STEPS),
    st.sampled_from(NAMES),
    st.integers(0, 3),
)


class History:
    """An API server in memory: objects, a log of changes that may be compacted, watches to cut."""

    def __init__(self) -> None:
        self.version, self.compacted = 1, 0
        self.objects: dict[str, Object] = {}
        self.log: list[tuple[int, WatchEvent]] = []
        self.generation, self.new = 0, asyncio.Event()

    def happen(self, what: str, name: str, value: int) -> None:
        if what == "delete" and name in self.objects:
            self._record("DELETED", name, self.objects.pop(name))
        elif what == "set":
            self._set(name, value, self.objects.get(name))
        elif what == "replace" and name in self.objects:
            self._record("DELETED", name, self.objects.pop(name))
            self._set(name, value, None)
        elif what == "bookmark":
            meta = {"resourceVersion": str(self.version)}
            self.log.append((self.version, WatchEvent("BOOKMARK", {"metadata": meta})))
        elif what == "compact":
            self.compacted = self.version
        self.generation += what in ("cut", "compact")
        self.new.set()

    def _set(self, name: str, value: int, old: Object | None) -> None:
        uid = old["metadata"]["uid"] if old else f"{name}-{self.version}"
        self.objects[name] = pod(name, 0, uid=uid, v=str(value))
        self._record("MODIFIED" if old else "ADDED", name, self.objects[name])

    def _record(self, kind: str, name: str, obj: Object) -> None:
        self.version += 1
        obj["metadata"] = obj["metadata"] | {"resourceVersion": str(self.version)}
        self.log.append((self.version, WatchEvent(kind, {**obj})))

    async def list_pages(self, *args: Any, **options: Any) -> AsyncGenerator[Listing, None]:
        await asyncio.sleep(0)
        yield Listing([{**obj} for obj in self.objects.values()], str(self.version))

    async def watch(
        self, *args: Any, resource_version: str, **options: Any
    ) -> AsyncGenerator[WatchEvent, None]:
        last, generation = int(resource_version), self.generation
        seen = len([1 for version, _ in self.log if version <= last])
        if last < self.compacted:
            raise Gone("too old")
        while True:
            for _, happened in self.log[seen:]:
                seen += 1
                yield happened
            if generation != self.generation:
                raise Unavailable("cut")
            self.new.clear()
            await self.new.wait()


async def play(steps: list[tuple[str, str, int]]) -> None:
    history = History()
    timing = Timing(sleep=lambda seconds: asyncio.sleep(0), random=lambda: 0.0)
    informer = Informer(
        cast(KubeClient, history), Watched(POD), lambda obj: dict(obj["metadata"]), timing
    )
    told: dict[str, Object] = {}

    def listener(old: Object | None, new: Object | None) -> None:
        named = new or old
        assert named is not None
        assert told.pop(named["name"], None) == old, "told of a change from another state"
        if new:
            told[named["name"]] = new
            assert old is None or old["uid"] == new["uid"]

    informer.on_change(listener)
    task = asyncio.create_task(informer.run())
    for what, name, value in steps:
        history.happen(what, name, value)
        if what == "observe" and name in history.objects:
            informer.observe(history.objects[name])
        for _turn in range(value if what == "let it read" else 0):
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    task.cancel()
    truth = {name: obj["metadata"] for name, obj in history.objects.items()}
    assert {value["name"]: value for value in informer.values()} == truth
    assert told == truth


@effort(50)
@given(st.lists(step, max_size=25))
def test_the_copy_is_true_in_the_end(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(play(steps))
