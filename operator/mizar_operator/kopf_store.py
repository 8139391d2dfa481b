"""The copy of one of Mizar's own kinds: Kopf's watch feeds it, a list at the start fills it, and
further lists correct it.

Kopf reports objects that are created or changed, and those that are deleted while it watches. When
it had to list again (410 Gone, after a broken connection), it reports the objects that exist, but
not those that are gone; only the store's own list can tell that. Kopf handles objects concurrently,
and answers to the operator's own writes come in between, so nothing here may depend on the order:
resource versions decide between two states of an object, and the UID of a deleted object never
comes back.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import Kind, Object
from mizar_kube.logs import get_logger
from mizar_kube.store import Key, StoreReader, Trim, is_newer, key_of

log = get_logger(__name__)

T = TypeVar("T")

RETRY_S = 2.0
"""Seconds from a failed list to the next try."""
LATE_S = 60.0
"""Seconds without a list, in addition to two periods between lists, after which the copy cannot be
relied on."""
GONE_MAX = 20_000
"""How many UIDs of deleted objects are remembered. Only an answer or a list that overlaps with the
deletion can still bring such an object, and that time is too short for so many deletions."""


@dataclass(frozen=True)
class Pace:
    """The time between lists: about `period` seconds. Tests set `sleep`, `clock` (monotonic
    seconds) and `random`."""

    period: float = 300.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random


class KopfStore(StoreReader[T]):
    """The copy of all objects of a kind, as `trim` reduces them. `synced` is set after the first
    list.

    Listeners are called once for each change, as `listener(old, new)`, however it came. The store
    belongs to one event loop.
    """

    def __init__(
        self, client: KubeClient, kind: Kind, trim: Trim[T], pace: Pace | None = None
    ) -> None:
        super().__init__(trim)
        self.synced = asyncio.Event()
        self._client = client
        self._kind = kind
        self._pace = pace or Pace()
        self._gone: dict[str, None] = {}
        self._lists = 0
        self._told = False
        self._went_back = False
        self._listed_version = ""
        self._listed_at = self._tried_at = self._pace.clock()

    def tell(self, type: str | None, obj: Object) -> None:
        """Record an event of Kopf's: ADDED, MODIFIED, DELETED, or None for an object that it
        listed."""
        self._told = True
        if type == "DELETED":
            self._bury(obj["metadata"]["uid"])
            self._store.drop(key_of(obj), obj["metadata"]["resourceVersion"])
        else:
            self._put(obj)

    def forget(self, name: str, namespace: str, uid: str) -> None:
        """Forget an object that the API server, asked live, does not have: the watch has lost its
        deletion."""
        self._bury(uid)
        self._store.drop_uid((namespace, name), uid)

    def observe(self, obj: Object) -> None:
        """Record the API server's answer to a write before the watch reports the change."""
        if self.synced.is_set():
            self._put(obj)

    def problem(self) -> str | None:
        """Why the copy cannot be relied on now, or None: never listed, not listed for too long, or
        Kopf has reported nothing, though it begins by reporting every object."""
        if not self.synced.is_set():
            return f"{self._kind.plural}: not listed yet"
        if (age := self._pace.clock() - self._listed_at) > self._late:
            return f"{self._kind.plural}: could not be listed for {age:.0f} s"
        return self._unwatched()

    def stands_still(self) -> str | None:
        """The problem that a restart would solve, or None: no list was begun for too long, Kopf
        does not watch, or it watches from a version of the future, since etcd was restored from a
        backup: such a watch brings nothing until there are as many versions again."""
        if (idle := self._pace.clock() - self._tried_at) > self._late:
            return f"{self._kind.plural}: the API server was not asked for {idle:.0f} s"
        if self._went_back:
            return f"{self._kind.plural}: versions went back, and Kopf watches from a later one"
        return self._unwatched()

    @property
    def _late(self) -> float:
        return 2 * self._pace.period + LATE_S

    def _unwatched(self) -> str | None:
        if self._lists > 1 and len(self._store) and not self._told:
            return f"{self._kind.plural}: Kopf does not watch them"
        return None

    async def run(self) -> None:
        """List at once and periodically, for ever. Errors of the API server are logged, each once
        as long as it stays the same, and tried again: while the API server is away there is one
        every RETRY_S."""
        logged = ""
        while True:
            try:
                await self.refresh()
            except KubeError as error:
                if str(error) != logged:
                    log.warning(
                        "the objects could not be listed", kind=self._kind.plural, error=error
                    )
                logged = str(error)
                await self._pace.sleep(RETRY_S)
            else:
                logged = ""
                # Replicas and kinds do not all list at the same moment.
                await self._pace.sleep(self._pace.period * (0.8 + 0.4 * self._pace.random()))

    async def refresh(self) -> None:
        """Make the copy agree with a list. Raises KubeError; the pages that were listed until then
        are kept."""
        corrected, keys, version, restored = 0, set[Key](), "", False
        self._tried_at = self._pace.clock()
        async with aclosing(self._client.list_pages(self._kind)) as pages:
            async for page in pages:
                version = page.resource_version
                self._tried_at = self._pace.clock()
                restored = self._is_restored(version)
                corrected += sum(self._put(obj, even_older=restored) for obj in page.items)
                keys.update(map(key_of, page.items))
        # After a restore, an object that is not in the backup is gone, however new it is. If one
        # was created since the list, the next list brings it back: its UID is not buried.
        for uid in self._store.keep_only(keys, as_of="" if restored else version):
            corrected += 1
            if not restored:
                self._bury(uid)
        self._listed(version, corrected)

    def _is_restored(self, version: str) -> bool:
        """Whether etcd is older than it was: a backup was restored, and deleted objects may live
        again."""
        if not is_newer(self._listed_version, version):
            return False
        self._gone.clear()
        self._went_back = True
        return True

    def _listed(self, version: str, corrected: int) -> None:
        if self.synced.is_set() and corrected:
            log.info(
                "a list showed changes that no watch had", kind=self._kind.plural, count=corrected
            )
        self._lists += 1
        self._listed_version = version
        self._listed_at = self._pace.clock()
        self.synced.set()

    def _put(self, obj: Object, even_older: bool = False) -> bool:
        """Put the object into the store, unless it is known to be deleted. Returns whether that
        changed what is kept."""
        if obj["metadata"]["uid"] in self._gone:
            return False
        return self._store.put(obj, even_older)

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
