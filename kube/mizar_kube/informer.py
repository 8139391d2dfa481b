"""A local copy of the objects of one kind, kept up to date by list and watch.

Only the part of each object that `trim` returns stays in memory. The copy stays correct across ends
of watches, restarts of the API server, expired versions, and objects deleted while nothing watched.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, TypeVar

from mizar_kube.backoff import Backoff
from mizar_kube.client import (
    PAGE_SIZE,
    WATCH_QUIET_S,
    WATCH_TIMEOUT_S,
    KubeClient,
    WatchEvent,
)
from mizar_kube.errors import Forbidden, Gone, Interrupted, KubeError, Silent
from mizar_kube.kinds import Kind, Object
from mizar_kube.logs import get_logger
from mizar_kube.store import Key, StoreReader, Trim, is_newer, key_of

log = get_logger(__name__)

T = TypeVar("T")

STALE_AFTER_S = 180.0
"""Seconds without any answer of the API server after which the copy is stale: the API server sends
a bookmark about once a minute."""
STANDS_STILL_S = 600.0
"""Seconds without a request to the API server or an answer after which the loop counts as hanging.
A watch ends by itself long before that, and so does every pause between tries."""
SHORT_WATCH_S = 1.0
"""Seconds: a watch that breaks sooner than this, or ends sooner without an event, has failed, and
is retried with a back-off."""
AT_ONCE = 10
"""Number of changes of a watch that are taken in before other tasks go on, such as answers to the
kubelet: of 100 pods that come at once, all changes may be there already."""


@dataclass(frozen=True)
class Watched:
    """Which objects an informer follows; the API server evaluates the selectors."""

    kind: Kind
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selectors(self) -> "Selectors":
        """The keyword arguments of KubeClient's list and watch."""
        return {"label_selector": self.label_selector, "field_selector": self.field_selector}


class Selectors(TypedDict):
    """The selectors of the objects that KubeClient lists or watches."""

    label_selector: str
    field_selector: str


@dataclass(frozen=True)
class Timing:
    """An informer's clock (monotonic seconds), sleep, random numbers and timeouts; tests provide
    their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    watch_seconds: int = WATCH_TIMEOUT_S
    page_size: int = PAGE_SIZE
    max_delay: float = 30.0


class Copy(Protocol):
    """The interface of a local copy of the objects of one kind: to run it, to wait for it, and to
    check it."""

    synced: asyncio.Event

    def run(self) -> Coroutine[Any, Any, None]:
        """Keep the copy current until cancelled."""

    def problem(self) -> str | None:
        """Why the copy cannot be relied on now, or None."""

    def stands_still(self) -> str | None:
        """The problem that a restart would solve, or None. An API server that does not answer is
        not one, however long it takes: it is asked again and again."""


class Informer(StoreReader[T]):
    """The copy of the objects that `watched` selects. `run()` keeps it current until cancelled;
    `synced` is set after the first list, `answered` also if the API server forbids it.

    Listeners (`on_change`) are called from `run` in the order of changes; they should only put a
    key into a queue. All of it belongs to one event loop.
    """

    def __init__(
        self, client: KubeClient, watched: Watched, trim: Trim[T], timing: Timing | None = None
    ) -> None:
        super().__init__(trim)
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self.forbidden: Forbidden | None = None
        """Why the API server forbids to list or watch the objects; None if it does not."""
        self._client = client
        self._watched = watched
        self._timing = timing or Timing()
        self._backoff = Backoff(most=self._timing.max_delay, random=self._timing.random)
        self._version = ""
        self._page_size = self._timing.page_size
        self._heard_at = self._tried_at = self._told_at = self._timing.clock()

    def items(self) -> list[tuple[Key, T]]:
        """((namespace, name), value) of all objects; the list is the caller's."""
        return self._store.items()

    def __contains__(self, key: Key) -> bool:
        return key in self._store

    def age(self) -> float:
        """Seconds since the last answer of the API server (event, bookmark, list, end of watch)."""
        return self._timing.clock() - self._heard_at

    def since_attempt(self) -> float:
        """Seconds since the informer last sent a request to the API server or got an answer. It
        retries for as long as there is no answer, so this exceeds minutes only if the informer
        hangs."""
        return self._timing.clock() - max(self._heard_at, self._tried_at)

    def problem(self, stale_after: float = STALE_AFTER_S) -> str | None:
        """Why the copy cannot be relied on now, or None: never listed, or nothing heard for too
        long. It says which right is missing, since that is logged once."""
        what, why = self._watched.kind.plural, f": {self.forbidden}" if self.forbidden else ""
        if not self.synced.is_set():
            return f"{what}: not listed yet{why}"
        if (age := self.age()) > stale_after:
            return f"{what}: nothing heard from the API server for {age:.0f} s{why}"
        return None

    def stands_still(self) -> str | None:
        """The problem that a restart would solve, or None: see Copy."""
        if (idle := self.since_attempt()) > STANDS_STILL_S:
            return f"{self._watched.kind.plural}: the API server was not asked for {idle:.0f} s"
        return None

    def observe(self, obj: Object) -> None:
        """Record the answer to a write of this process, before the watch reports the change.

        Ignored when the watch is already past it: the object may have been deleted since.
        """
        version = str(obj["metadata"].get("resourceVersion", ""))
        if self.synced.is_set() and is_newer(version, self._version):
            self._store.put(obj)

    async def run(self) -> None:
        """List, then watch, for ever. Errors of the API server are logged and tried again."""
        listed = False
        while True:
            self._tried_at = self._timing.clock()
            try:
                if not listed:
                    await self._list()
                    listed = True
                await self._watch()
            except Gone as gone:
                log.info(
                    "the watch cannot go on: all objects are listed again",
                    kind=self._watched.kind.name,
                    error=gone,
                )
                # If the pages took too long to read, the next list is one page.
                self._page_size = self._timing.page_size if listed else 0
                await self._pause(gone)
                listed = False
            except KubeError as error:
                known = self.forbidden is not None and isinstance(error, Forbidden)
                (log.debug if known else log.warning)(
                    "the watch was interrupted", kind=self._watched.kind.name, error=error
                )
                self._note_forbidden(error)
                await self._pause(error)
                # After etcd was restored, a watch from a version of the future stays silent until
                # there are as many versions again, and says nothing of what is older.
                listed = listed and not isinstance(error, Silent)

    async def _list(self) -> None:
        watched, keys, version = self._watched, set[Key](), ""
        pages = self._client.list_pages(
            watched.kind, watched.namespace, page_size=self._page_size, **watched.selectors
        )
        async with aclosing(pages):
            async for page in pages:
                version = page.resource_version
                keys.update(self._put_page(page.items, even_older=self._is_restored(version)))
        # Objects that `observe` took in may be newer than the list, which must not undo them.
        self._store.keep_only(keys, as_of="" if self._is_restored(version) else version)
        self._version = version
        self._heard_at = self._told_at = self._timing.clock()
        self.forbidden = None
        self.synced.set()
        self.answered.set()

    def _is_restored(self, version: str) -> bool:
        """Whether versions have gone back, as after etcd was restored from a backup."""
        return is_newer(self._version, version)

    def _put_page(self, items: list[Object], even_older: bool) -> Iterable[Key]:
        self._heard_at = self._timing.clock()
        for obj in items:
            self._store.put(obj, even_older)
        return map(key_of, items)

    async def _watch(self) -> None:
        watched, started, events = self._watched, self._timing.clock(), 0
        seconds = int(self._timing.watch_seconds * (1 + self._timing.random()))
        stream = self._client.watch(
            watched.kind,
            watched.namespace,
            resource_version=self._version,
            timeout_seconds=seconds,
            **watched.selectors,
        )
        try:
            async with aclosing(stream):
                async for event in stream:
                    events += 1
                    self._take(event)
                    if events % AT_ONCE == 0:
                        await asyncio.sleep(0)
        except Interrupted as error:
            # Proxies close connections without traffic, some of them sooner than a bookmark comes.
            if self._timing.clock() - started < SHORT_WATCH_S:
                raise
            log.info("the watch was interrupted", kind=watched.kind.name, error=error)
        if not events and self._timing.clock() - started < SHORT_WATCH_S:
            raise KubeError(f"the watch of {watched.kind.plural} ended at once")
        self._check_told()
        self._heard()

    def _check_told(self) -> None:
        """Raise Silent if watches, each of which ended too soon to be silent by itself, have
        together brought nothing for too long."""
        if (quiet := self._timing.clock() - self._told_at) > WATCH_QUIET_S:
            raise Silent(
                f"watches of {self._watched.kind.plural} brought nothing for {quiet:.0f} s"
            )

    def _take(self, event: WatchEvent) -> None:
        version = str(event.object["metadata"]["resourceVersion"])
        if event.type in ("ADDED", "MODIFIED"):
            self._store.put(event.object)
        elif event.type == "DELETED":
            self._store.drop(key_of(event.object), version)
        self._version = version
        self._told_at = self._timing.clock()
        self._heard()

    def _heard(self) -> None:
        self._heard_at = self._timing.clock()
        self.forbidden = None
        self._backoff.reset()

    def _note_forbidden(self, error: KubeError) -> None:
        if isinstance(error, Forbidden):
            self.forbidden = error
            self.answered.set()

    async def _pause(self, error: KubeError) -> None:
        await self._timing.sleep(max(self._backoff.next(), error.retry_after or 0.0))


async def wait_synced(copies: Iterable[Copy], timeout: float) -> None:
    """Wait until all copies have been listed once. Raises TimeoutError after `timeout` seconds,
    naming those that have not."""
    known = list(copies)
    try:
        async with asyncio.timeout(timeout):
            for one in known:
                await one.synced.wait()
    except TimeoutError:
        problems = [problem for one in known if (problem := one.problem()) is not None]
        raise TimeoutError(f"after {timeout:.0f} s: {'; '.join(problems)}") from None
