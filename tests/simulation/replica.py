"""One replica of the operator: the parts of its real process, on a simulated client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

from mizar_core.planning import Plan, plan
from mizar_core.planning.planning_errors import Planner
from mizar_core.planning.spot import SpotPlan, plan_spot
from mizar_kube.client import KubeClient
from mizar_kube.clock import Clock
from mizar_kube.errors import KubeError
from mizar_operator.leader import LeadershipLost
from mizar_operator.main import Operator
from mizar_operator.reconcile import run_here
from mizar_operator.settings import Settings
from simulation.client import SimulatedClient
from simulation.fault_injection import FaultInjection
from simulation.kopf_watch import KopfWatch
from simulation.network import Server

OFTEN_S, RARELY_S = 30.0, 3600.0
"""Seconds between two lists of Mizar's own kinds. Rare lists show what watches and answers achieve
alone."""
RESTART_S = 3.0
SLOW_HANDLERS_S = (0.0, 0.05, 2.0)


class Process(Operator):
    """The operator with the feeder in Kopf's place. It looks at everything once, and never again
    without a reason: that would hide what was forgotten."""

    kopf_watch: KopfWatch

    async def watch(self) -> None:
        """See Operator.watch."""
        await self.kopf_watch.run()

    async def _resync(self) -> None:
        self.queue.resync(sorted(self.caches.keys()), 1.0, self._clock.random)
        await asyncio.Event().wait()


class Replica:
    """A Deployment's pod, whose process is started again when it ends. `failed` is called with what
    must not happen in it; `alone`: it is the only one and needs no Lease; `period`: seconds between
    two lists of Mizar's own kinds."""

    def __init__(
        self,
        server: Server,
        faults: FaultInjection,
        name: str,
        clock: Clock,
        random: Random,
        failed: Callable[[str], None],
        alone: bool,
        plan: Planner,
    ) -> None:
        self.name = name
        self.alone = alone
        self.starts = 0
        self._server = server
        self._faults = faults
        self._clock = clock
        self._random = random
        self._failed = failed
        self._plan = plan
        self._slow = random.choice(SLOW_HANDLERS_S)
        self.period = random.choice((OFTEN_S, RARELY_S))

    async def run(self) -> None:
        """Start the process, and start it again whenever it has ended."""
        while True:
            self._begin()
            try:
                await self._process()
            finally:
                self.client.cut()
            await asyncio.sleep(RESTART_S * self._random.random())

    @property
    def leads(self) -> bool:
        """Whether the process believes that it leads."""
        return bool(self.operator.metrics.leader._value.get() == 1)

    def kill(self) -> None:
        """End it as SIGKILL does: nothing of the process acts any more."""
        self._killed = True
        self.client.cut()
        self._running.cancel()

    def terminate(self) -> None:
        """End it as SIGTERM does."""
        self._stop.set()

    def calm(self) -> None:
        """Handlers are quick from the next start on."""
        self._slow = 0.0

    async def list_again(self) -> None:
        """List Mizar's own kinds now instead of at some later time."""
        caches = self.operator.caches
        for store in (caches.pools, caches.quotas, caches.shadows):
            await store.refresh()

    async def plans(self) -> dict[str, Plan]:
        """The plan that would be made now, by key."""
        found = {}
        for key in sorted(self.operator.caches.keys()):
            snapshot = await self.operator.gatherer.gather(key)
            found[key] = plan(snapshot, self._clock.now())
        return found

    def spot_plan(self) -> SpotPlan:
        """The plan for spot pods that would be made now."""
        return plan_spot(self.operator.spot.gather(), self._clock.now())

    def _begin(self) -> None:
        self.starts += 1
        self._killed = False
        self._stop = asyncio.Event()
        self.client = SimulatedClient(self._server, self._faults, f"{self.name}/{self.starts}")
        self.operator = Process(
            cast(KubeClient, self.client),
            self._settings(),
            self._clock,
        )
        self.operator.kopf_watch = KopfWatch(
            self.client, self.operator.caches, self._random, self._slow
        )
        self.operator.reconciler._planner = self._plan
        # A thread takes real time, of which there is none here.
        self.operator.reconciler._runs = self.operator.spot._runs = run_here
        self._watch_rounds()

    def _settings(self) -> Settings:
        return Settings(
            identity=self.name,
            resync=self.period,
            pause_image="pause",
            leader_election=not self.alone,
            spot=True,
        )

    async def _process(self) -> None:
        self._running = asyncio.create_task(self.operator.run(self._stop), name=self.name)
        try:
            await self._running
        except LeadershipLost:
            return
        except asyncio.CancelledError:
            if not self._killed:
                self._running.cancel()
                raise
        except Exception as error:
            self._failed(f"{self.name} ended: {error!r}")

    def _watch_rounds(self) -> None:
        """A round may fail because of the API server, and for no other reason."""
        reconcile: Any = self.operator.reconciler.reconcile

        async def watched(key: str) -> None:
            try:
                await reconcile(key)
            except KubeError:
                raise
            except Exception as error:
                self._failed(f"{self.name} failed at {key!r}: {error!r}")
                raise

        self.operator.reconciler.reconcile = watched  # type: ignore[method-assign]
