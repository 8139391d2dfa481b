"""The process: puts the parts together, runs them, ends promptly."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_kube.client import KubeClient
from mizar_kube.config import ConfigError
from mizar_kube.events import EventRecorder
from mizar_kube.informer import wait_synced
from mizar_kube.queue import WorkQueue, work
from mizar_operator import health
from mizar_operator.apply import Applier
from mizar_operator.caches import Caches, on_change
from mizar_operator.gather import Gatherer
from mizar_operator.handlers import Body, Kopf
from mizar_operator.leader import Leader, LeadershipLost
from mizar_operator.metrics import Metrics
from mizar_operator.reconcile import Reconciler
from mizar_operator.settings import Settings, parse

log = logging.getLogger(__name__)

LEASE_NAME = "mizar-operator"
STARTING_FOR_S = 120.0
STUCK_AFTER_S = 120.0
RETRY_MOST_S = 15.0
RESYNC_SPREAD_S = 5.0


class Operator:
    """All parts of the process, made from a client and settings."""

    def __init__(self, client: KubeClient, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.caches = Caches(client)
        self.queue: WorkQueue[str] = WorkQueue(max_delay=RETRY_MOST_S)
        self.events = EventRecorder(client, FIELD_MANAGER_OPERATOR, settings.identity)
        self.leader = Leader(client, settings.namespace, LEASE_NAME, settings.identity)
        gatherer = Gatherer(client, self.caches)
        applier = Applier(
            client, self.caches, self.events, settings.pause_image, settings.writes_at_once
        )
        self.reconciler = Reconciler(gatherer, applier, self.queue, self.metrics)
        self._started = time.monotonic()

    def dead(self) -> list[str]:
        """What a restart would cure."""
        problems = self.caches.problems()
        if not self.is_synced and time.monotonic() - self._started < STARTING_FOR_S:
            problems = []
        if (oldest := self.queue.oldest()) > STUCK_AFTER_S:
            problems.append(f"queue: nothing has come of a key for {oldest:.0f} s")
        return problems

    def unready(self) -> list[str]:
        """Why this replica could not lead now."""
        return self.caches.problems()

    @property
    def is_synced(self) -> bool:
        """Whether all caches have been filled."""
        return all(one.synced.is_set() for one in self.caches)

    async def run(self) -> None:
        """Fill the caches, wait to lead, lead. Ends with an exception or not at all."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.caches:
                tasks.create_task(informer.run())
            tasks.create_task(self.events.run())
            await wait_synced(self.caches, timeout=STARTING_FOR_S)
            if self.settings.leader_election:
                await self.leader.acquire()
                tasks.create_task(self.leader.keep())
            self.metrics.leader.set(1)
            await self._lead(tasks)

    async def _lead(self, tasks: asyncio.TaskGroup) -> None:
        on_change(self.caches, self.queue.add)
        kopf = Kopf(self._touch_from(asyncio.get_running_loop()), self.settings.kubeconfig)
        kopf.start()
        try:
            for _ in range(self.settings.workers):
                tasks.create_task(work(self.queue, self.reconciler.reconcile))
            await self._resync()
        finally:
            kopf.stop()

    async def _resync(self) -> None:
        """Everything again now and then, should a change have been missed."""
        while True:
            self.queue.resync(self.caches.keys(), RESYNC_SPREAD_S, random.random)
            await asyncio.sleep(self.settings.resync)

    def _touch_from(self, loop: asyncio.AbstractEventLoop) -> Callable[[str, Body], None]:
        """For Kopf's thread: one of the three kinds has changed."""

        def touch(plural: str, body: Body) -> None:
            spec = body.get("spec") or {}
            if plural == "gpupools":
                self.queue.add(str(spec.get("resourcePrefix", "")))
            else:
                self.queue.add(self.caches.key_of_pool(str(spec.get("pool", ""))))

        def touched(plural: str, body: Body) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(touch, plural, dict(body))

        return touched


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT (0), or until we must not go on (1)."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig))
        operator = Operator(client, settings)
        app = health.application(operator.dead, operator.unready, operator.metrics)
        await stack.enter_async_context(health.serving(app, settings.port))
        try:
            await _until(stop, operator.run())
        except BaseExceptionGroup as group:
            lost = group.subgroup(LeadershipLost)
            if lost is None:
                raise
            log.error("%s", lost.exceptions[0])
            return 1
        if settings.leader_election:
            await operator.leader.release()
    return 0


async def _until(stop: asyncio.Event, job: Coroutine[Any, Any, None]) -> None:
    """Run the job until it fails or `stop` is set."""
    working = asyncio.create_task(job)
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, waiting):
        task.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
    if not working.cancelled() and (error := working.exception()) is not None:
        raise error


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `mizar-operator`."""
    settings = parse(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.ERROR)
    try:
        sys.exit(asyncio.run(run(settings)))
    except ConfigError as error:
        sys.exit(f"mizar-operator: {error}")


if __name__ == "__main__":
    main()
