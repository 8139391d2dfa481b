"""The operator's process: its parts, and the order in which they begin and end.

Everything runs in one event loop. When Kopf ends, it waits for all tasks that were created after
it began, and then cancels them: so it begins last and ends before the parts that feed it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import kopf

from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_kube import logs, probes
from mizar_kube.client import KubeClient
from mizar_kube.clock import Clock
from mizar_kube.errors import ConfigError, KubeError
from mizar_kube.events import EventRecorder
from mizar_kube.http_session import session
from mizar_kube.informer import Timing, wait_synced
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, SHADOW_POD
from mizar_kube.logs import get_logger
from mizar_kube.settings import load
from mizar_kube.version import version
from mizar_kube.work_queue import WorkQueue, work
from mizar_operator import action_log, caches, default_pool, shadow_disruption_budgets
from mizar_operator.apply import Applier
from mizar_operator.caches import SPOT, Caches
from mizar_operator.gather import Gatherer
from mizar_operator.handlers import Memo, gpupool, gpuquota, shadowpod
from mizar_operator.kopf_process import KopfFailed, kopf_settings, served
from mizar_operator.kopf_store import Pace
from mizar_operator.leader import Leader, LeadershipLost
from mizar_operator.metrics import Metrics
from mizar_operator.readiness import Readiness
from mizar_operator.reconcile import Reconciler, run_in_thread
from mizar_operator.settings import Settings
from mizar_operator.spot import assembly as spot_assembly
from mizar_operator.spot.reconcile import SpotReconciler

log = get_logger(__name__)

LEASE_NAME = "mizar-operator"
"""Name of the Lease by which the replicas elect a leader."""
TELL_EVERY_S = 60.0
"""Seconds between log lines that say which caches are not filled yet."""
STUCK_AFTER_S = 120.0
"""Seconds without a result for a key of the queue after which the liveness probe fails."""
RETRY_MOST_S = 15.0
"""The most seconds until a failed reconcile of a key is tried again."""
RESYNC_SPREAD_S = 5.0
"""Seconds over which a resync spreads the keys."""
KOPF_ENDS_WITHIN_S = 0.5
"""Seconds for which the process, when it ends, waits for the release of the Lease and Kopf
together, and then for the other tasks, before it abandons them."""
LAST_EVENTS_WITHIN_S = 0.2
"""Seconds for which the events of the last plan are written before the process ends. In a burst
there may be thousands, of which some are lost."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals at which the process ends."""


class Operator:
    """All parts of the process, made from settings and a client of the API server."""

    def __init__(self, client: KubeClient, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._client, self._clock = client, clock or Clock()
        seconds, now, chance = self._clock.seconds, self._clock.now, self._clock.random
        timing = Timing(clock=seconds, random=chance)
        self.caches = Caches(client, Pace(settings.resync, clock=seconds, random=chance), timing)
        self.budgets = shadow_disruption_budgets.watch(client, timing)
        self.queue: WorkQueue[str] = WorkQueue(max_delay=RETRY_MOST_S, clock=seconds, random=chance)
        self.events = self._event_recorder()
        self.leader = self._leader()
        self.gatherer = Gatherer(client, self.caches, seconds)
        applier = self._applier()
        self.reconciler = Reconciler(
            self.gatherer, applier, self.queue, self.metrics, now, seconds, runs=run_in_thread
        )
        self.spot = self._spot_reconciler()
        self._kopf_stop, self._kopf_ready = asyncio.Event(), asyncio.Event()
        self._kopf_ending = asyncio.Event()
        self._led_since: float | None = None
        followers = (gpupool.follow, gpuquota.follow, shadowpod.follow, caches.follow)
        for follow in (*followers, spot_assembly.follow):
            follow(self.caches, self.queue.add)
        shadow_disruption_budgets.follow(self.budgets, applier.budgets, self.caches, self.queue.add)

    def _event_recorder(self) -> EventRecorder:
        return EventRecorder(
            self._client,
            FIELD_MANAGER_OPERATOR,
            self.settings.identity,
            self._clock.seconds,
            self._clock.now,
            others_done=self.queue.wait_idle,
        )

    def _leader(self) -> Leader:
        return Leader(
            self._client,
            self.settings.namespace,
            LEASE_NAME,
            self.settings.identity,
            owner=self.settings.deployment,
            clock=self._clock.seconds,
            now=self._clock.now,
        )

    def _applier(self) -> Applier:
        return Applier(
            self._client,
            self.caches,
            self.events,
            self.settings.pod_settings,
            self.settings.writes_at_once,
            self._clock.seconds,
        )

    def _spot_reconciler(self) -> SpotReconciler:
        return spot_assembly.reconciler(
            self._client,
            self.caches,
            self.events,
            self.queue,
            self.metrics.registry,
            self.settings,
            self._clock,
            runs=run_in_thread,
        )

    def dead(self) -> list[str]:
        """The problems that a restart would solve.

        An unreachable API server is not one, however long it lasts: a process restarted in vain
        waits longer and longer for its next start, and so does everything that needs a leader.
        """
        problems = self.caches.standing_still()
        if (stuck := self._stuck()) > STUCK_AFTER_S:
            problems.append(f"queue: no result for a key in {stuck:.0f} s")
        return problems

    def _stuck(self) -> float:
        """Seconds that a key has been waiting in the queue, from when this replica came to lead."""
        if self._led_since is None:
            return 0.0
        return min(self.queue.oldest(), self._clock.seconds() - self._led_since)

    def unready(self) -> list[str]:
        """Why this replica could not lead now."""
        return self.caches.problems()

    async def run(self, stop: asyncio.Event, readiness: Readiness | None = None) -> None:
        """Run until `stop` is set, or until a part ends: a part ends only if it fails, and its
        error is raised here. `readiness`: checked by a part of its own. Ends within a second, the
        release of the Lease included: if the API server does not answer by then, the Lease expires
        by itself."""
        leading = _task("lead", self._lead())
        feeding = [_task("copy", one.run()) for one in (*self.caches, self.budgets)]
        telling = _task("events", self.events.run())
        signals = _task("signals", self._take_back_signals(stop))
        stopping = asyncio.create_task(stop.wait(), name="stop")
        ended = _task("kopf-ended", self._kopf_ended())
        usable = _task("usable", _checked(readiness))
        watching = _task("kopf", self.watch())
        parts = (leading, *feeding, telling, ended, usable, watching)
        try:
            await asyncio.wait({*parts, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                _raise_first(parts)
        finally:
            # The parts that write end first, then those that read, also if this is cancelled.
            try:
                await _cancel(leading, telling, signals, stopping, ended, usable)
                await self._end(watching, releases=stop.is_set())
            finally:
                await _cancel(watching, *feeding)

    async def _end(self, watching: asyncio.Task[None], releases: bool) -> None:
        """Write the last events, release the Lease if it `releases` it, and give Kopf (`watching`)
        time to end."""
        began = self._clock.seconds()
        releases &= self.settings.leader_election
        await asyncio.gather(
            self._write_last_events(), *([self.leader.release()] if releases else [])
        )
        left = KOPF_ENDS_WITHIN_S - (self._clock.seconds() - began)
        self._kopf_stop.set()
        await asyncio.wait({watching}, timeout=max(0.0, left))

    async def _write_last_events(self) -> None:
        """Write the events of the last plan, which no other replica repeats, while the Lease is
        released."""
        with suppress(KubeError, TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_WITHIN_S):
                await self.events.flush()

    async def _lead(self) -> None:
        """Wait until all caches are filled and this replica leads, then process the queue."""
        await self._filled()
        async with asyncio.TaskGroup() as tasks:
            if self.settings.leader_election:
                await self.leader.acquire()
                tasks.create_task(self.leader.keep())
            self.leads_from_now_on()
            self.caches.shares.on_change(action_log.log_placed)
            self.caches.shares.on_change(self.metrics.pod_changed)
            self.caches.shadows.on_change(self.metrics.shadow_counters.changed)
            if self.settings.default_pool is not None:
                tasks.create_task(default_pool.ensure(self._client, self.settings.default_pool))
            for _ in range(self.settings.workers):
                tasks.create_task(work(self.queue, self._reconcile))
            await self._resync()

    async def _filled(self) -> None:
        """Wait until all caches are filled, and log now and then why they are not."""
        while True:
            try:
                return await wait_synced(self.caches, timeout=TELL_EVERY_S)
            except TimeoutError as error:
                log.warning("waiting for the first lists", error=error)

    async def _reconcile(self, key: str) -> None:
        if key == SPOT:
            with self.metrics.counting_failure():
                await self.spot.reconcile()
        else:
            await self.reconciler.reconcile(key)

    def leads_from_now_on(self) -> None:
        """Note that keys of the queue are processed from this moment on."""
        self.metrics.leader.set(1)
        self._led_since = self._clock.seconds()

    async def _resync(self) -> None:
        """Queue all keys periodically, in case a change has been missed."""
        while True:
            self.queue.resync(
                sorted({*self.caches.keys(), SPOT}), RESYNC_SPREAD_S, self._clock.random
            )
            await asyncio.sleep(self.settings.resync)

    async def watch(self) -> None:
        """Run Kopf, the only watch of Mizar's own kinds, until it is asked to end."""
        await served(self._client, (GPU_POOL, GPU_QUOTA, SHADOW_POD))
        await kopf.operator(
            settings=kopf_settings(),
            memo=Memo(self.caches, self._login, self._kopf_ending.set),
            standalone=True,
            clusterwide=True,
            stop_flag=self._kopf_stop,
            ready_flag=self._kopf_ready,
        )

    async def _kopf_ended(self) -> None:
        """Raise KopfFailed when Kopf begins to end. Kopf may never finish ending: when one of its
        watches fails, the others wait for credentials that are never renewed."""
        await self._kopf_ending.wait()
        raise KopfFailed("Kopf has ended; its last message says why")

    async def _take_back_signals(self, stop: asyncio.Event) -> None:
        """Install the operator's signal handlers again, since Kopf replaces them when it begins."""
        await self._kopf_ready.wait()
        _take_signals(stop)

    def _login(self) -> kopf.AiohttpSession:
        """Kopf's connections, with the same configuration as the operator's own."""
        found = self._client.configuration
        return kopf.AiohttpSession(server=str(found.host), aiohttp_session=session(found))


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT (returns 0), or until the process must not go on (1)."""
    stop = asyncio.Event()
    _take_signals(stop)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig))
        operator = Operator(client, settings)
        readiness = Readiness(
            client, settings.default_pool is not None, operator.metrics.webhook_reachable
        )
        app = probes.application(
            operator.metrics.registry,
            operator.dead,
            lambda: [*operator.unready(), *readiness.problems()],
        )
        await stack.enter_async_context(probes.serving(app, settings.metrics_port))
        try:
            await operator.run(stop, readiness)
        except Exception as error:
            expected = isinstance(error, LeadershipLost)
            log.error(
                "the operator ends after an error",
                error=error,
                exc_info=None if expected else error,
            )
            return 1
    return 0


def _take_signals(stop: asyncio.Event) -> None:
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _checked(readiness: Readiness | None) -> None:
    """Check readiness and never return: the process ends when one of its parts does."""
    if readiness is not None:
        await readiness.run()
    await asyncio.Event().wait()


def _task(name: str, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(job, name=name)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks. A task that does not end soon is abandoned: see `_kopf_ended`."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=KOPF_ENDS_WITHIN_S)


def _raise_first(parts: Iterable[asyncio.Task[None]]) -> None:
    """Raise the error that ended a part, the innermost one where a group of tasks wraps it."""
    for part in parts:
        error = part.exception() if part.done() and not part.cancelled() else None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            raise error
    raise RuntimeError("a part of the process has ended")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `mizar-operator`."""
    settings = load(Settings, argv)
    logs.set_up(settings.log_level, settings.log_format)
    log.info("the operator starts", version=version())
    try:
        asyncio.run(_run_and_exit(settings))
    except ConfigError as error:
        sys.exit(f"mizar-operator: {error}")


async def _run_and_exit(settings: Settings) -> None:
    """Run, and end the process from within the loop: the loop's own end would wait for every task,
    and abandoned tasks of Kopf's never end."""
    code = await run(settings)
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
