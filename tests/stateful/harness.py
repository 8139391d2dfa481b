"""The real operator on an API server in memory, with caches that are as stale as a test likes."""

from __future__ import annotations

import asyncio
import atexit
import functools
import marshal
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar, cast

from mizar_core.planning import Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer, Timing
from mizar_kube.kinds import (
    DEVICE_CLASS,
    GPU_POOL,
    GPU_QUOTA,
    NODE,
    POD,
    RESOURCE_SLICE,
    SHADOW_POD,
    Kind,
    Object,
)
from mizar_kube.store import Key, key_of
from mizar_kube.work_queue import WorkQueue
from mizar_operator.apply import Applier
from mizar_operator.caches import Caches
from mizar_operator.gather import Gatherer
from mizar_operator.kopf_store import KopfStore
from mizar_operator.manifests import PodSettings
from mizar_operator.metrics import Metrics
from mizar_operator.reconcile import Reconciler
from stateful.memory_api import Crash, copied
from stateful.model import Model

T = TypeVar("T")

KEY = "mizar.share"
KINDS = (GPU_POOL, GPU_QUOTA, SHADOW_POD, POD, NODE, RESOURCE_SLICE, DEVICE_CLASS)
WATCHES = (GPU_POOL, GPU_QUOTA, SHADOW_POD, POD, POD, NODE, RESOURCE_SLICE, DEVICE_CLASS)


class Events:
    """Records the events that are emitted. `warnings`: the reasons of those that are of the type
    Warning."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.warnings: set[str] = set()

    def emit(
        self, about: Regarding, reason: str, note: str, *, warning: bool = False, **_: Any
    ) -> None:
        """As EventRecorder.emit."""
        self.told.append((f"{about.kind.name}/{about.name}", reason, note))
        if warning:
            self.warnings.add(reason)


class Harness:
    """One operator process, which may crash and come again."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.events = Events()
        self.restart()

    def restart(self) -> None:
        """A new process: everything it knows comes from the API server."""
        client = cast(KubeClient, self.model.api)
        self._known: dict[tuple[int, Key], tuple[bytes, object]] = {}
        self.caches = Caches(client, timing=Timing(clock=self._clock))
        self.slices, self.classes = self.caches.dra.make_informers()
        self.queue: WorkQueue[str] = WorkQueue(clock=self._clock)
        self.gatherer = Gatherer(client, self.caches, clock=self._clock)
        applier = Applier(
            client,
            self.caches,
            cast(EventRecorder, self.events),
            PodSettings("pause"),
            clock=self._clock,
        )
        self.metrics = Metrics()
        self.reconciler = Reconciler(
            self.gatherer, applier, self.queue, self.metrics, lambda: self.model.time, self._clock
        )
        self.caches.shadows.on_change(self.metrics.shadow_counters.changed)
        self.sync(KINDS)

    def sync(self, kinds: Iterable[Kind]) -> None:
        """The watches of these kinds catch up."""
        for kind, informer in zip(WATCHES, self._informers(), strict=True):
            if kind in kinds:
                self._fill(kind, informer)
        self.caches.dra.forget_gone()

    def catch_up(self, node: str = "n1") -> None:
        """Let all parts but the operator act, and its caches catch up."""
        self.model.schedule()
        self.model.kubelet(node)
        self.model.agent(node)
        self.sync(KINDS)

    def round(self, seconds: float = 1) -> None:
        """Let all parts act, the operator last; then time goes by."""
        self.catch_up()
        self.reconcile()
        self.model.tick(seconds)

    def reconcile(self, key: str = KEY) -> KubeError | None:
        """One round of the operator; restarts it if it crashed."""
        try:
            _run(self.reconciler.reconcile(key))
        except Crash:
            self.model.api.before_write = lambda write: None
            self.restart()
        except KubeError as error:
            return error
        return None

    def work(self) -> list[KubeError]:
        """Whatever is due in the queue; returns what failed."""
        errors = []
        while len(self.queue):
            key = _run(self.queue.get())
            if error := self.reconcile(key):
                errors.append(error)
            self.queue.done(key)
        return errors

    def snapshot(self, key: str = KEY) -> Snapshot:
        """The snapshot that the operator gathers."""
        return _run(self.gatherer.gather(key))

    def _clock(self) -> float:
        return self.model.time.timestamp()

    def _informers(self) -> list[Informer[Any] | KopfStore[Any]]:
        caches = self.caches
        return [
            caches.pools,
            caches.quotas,
            caches.shadows,
            caches.holders,
            caches.shares,
            caches.nodes,
            self.slices,
            self.classes,
        ]

    def _fill(self, kind: Kind, informer: Informer[Any] | KopfStore[Any]) -> None:
        self._put(list(self.model.api.all(kind)), informer)
        if kind == POD:
            unbound = [one for one in self.model.api.all(POD) if not one["spec"].get("nodeName")]
            self._put(unbound, self.caches.pending)

    def _put(self, found: list[Object], informer: Informer[Any] | KopfStore[Any]) -> None:
        store = informer._store
        for obj in found:
            # Most objects are what they were, and to read them again takes long.
            key, body = key_of(obj), marshal.dumps(obj, 2)
            before, value = self._known.get((id(informer), key), (b"", None))
            if body != before or store.get(key) is not value:
                store.put(copied(obj), even_older=True)
                self._known[id(informer), key] = body, store.get(key)
        store.keep_only(key_of(obj) for obj in found)
        if isinstance(informer, Informer):
            informer._version = str(self.model.api.version)
        informer.synced.set()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    atexit.register(made.close)
    return made


def _run(job: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, without a new event loop each time."""
    loop = _loop()
    try:
        return loop.run_until_complete(job)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
