"""One schedule: everything that a seed decides, from the first quota to the last quiet minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from random import Random

from mizar_kube.clock import Clock
from mizar_kube.kinds import EVENT, Object, Ref
from simulation import convergence
from simulation.cluster import Cluster
from simulation.failing_planner import BUG, FailingPlanner
from simulation.fault_injection import FaultInjection
from simulation.replica import Replica
from simulation.rules import Broken, Rules
from simulation.spot_rules import REMEMBERED_S
from simulation.users import Users
from support.virtual_time import run

PACES = (0.05, 0.3, 1.5)
TRACE_SHOWN = 80


class Schedule:
    """All parts of the simulation. It is the server of the simulated clients; `trace` is what
    happened, in order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.writes = 0
        self._broken: list[str] = []
        random = self.random("schedule")
        self.faults = FaultInjection.drawn(self.random("weather"))
        self.cluster = Cluster(self.random("cluster"), random.choice(PACES))
        self.api = self.cluster.api
        self.users = Users(self.cluster, self.random("people"), self.tell)
        self.acts, self.every = random.randint(5, 25), random.choice((0.3, 1.0, 4.0, 30.0))
        count = random.choice((1, 1, 2))
        self._alone = count == 1 and random.random() < 0.7
        self.rules = Rules(self.cluster, self.broken, leased=not self._alone)
        self.failing_planner = FailingPlanner(self.random("poison"))
        self.replicas = [self._replica(f"r{number}") for number in range(count)]
        self.rules.spot.missed_s = REMEMBERED_S + 2 * max(one.period for one in self.replicas)

    def random(self, purpose: str) -> Random:
        """Chance of its own for each purpose, so that they do not disturb each other."""
        return Random(f"{self.seed} {purpose}")

    # The server of the simulated clients.

    def issued(self, sender: str, verb: str, ref: Ref, body: Object) -> None:
        """See simulation.network.Server."""
        self.cluster.catch_up()
        self.rules.issued(sender, verb, ref, body)

    def arriving(self, sender: str) -> None:
        """See simulation.network.Server."""
        self.cluster.catch_up()
        self.rules.sender = sender

    def told(self, sender: str, verb: str, what: str, outcome: str) -> None:
        """See simulation.network.Server."""
        if verb not in ("get", "list", "watch") and "leases" not in what:
            self.writes += 1
        if not what.startswith(EVENT.plural):
            self.tell(f"{sender} {verb} {what}: {outcome}")

    # What happens.

    def tell(self, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    def broken(self, rule: str) -> None:
        """A rule was broken: the schedule ends at its next step."""
        self.tell(f"BROKEN {rule}")
        self._broken.append(rule)

    async def sleep(self, seconds: float) -> None:
        """Let it go on for that long. Raises Broken when a rule is broken."""
        await asyncio.sleep(seconds)
        if self._broken:
            raise Broken(self._broken[0])

    async def play(self) -> None:
        """From beginning to end. Raises Broken."""
        self.users.prepare()
        machines = asyncio.create_task(self.cluster.run(self.rules.looked))
        machines.add_done_callback(self._ended)
        running = [asyncio.create_task(replica.run()) for replica in self.replicas]
        chaos = asyncio.create_task(self._chaos())
        acting = asyncio.create_task(self.users.act(self.acts, self.every))
        while not acting.done():
            await self.sleep(2)
        acting.result()
        chaos.cancel()
        await convergence.settles(self)
        for task in (machines, *running):
            assert not task.done(), task

    def _ended(self, machines: asyncio.Task[None]) -> None:
        """The cluster itself has failed: nothing that follows would mean anything."""
        if not machines.cancelled():
            self.broken(f"the model of the cluster ended: {machines.exception()!r}")

    async def _chaos(self) -> None:
        """Processes die, the API server goes away and forgets."""
        random = self.random("chaos")
        often = random.choice((5.0, 20.0, 1000.0))
        while True:
            await asyncio.sleep(random.expovariate(1 / often))
            replica, what = random.choice(self.replicas), random.randrange(5)
            if what == 0:
                self.tell(f"kill {replica.name}")
                replica.kill()
            elif what == 1:
                self.tell(f"terminate {replica.name}")
                replica.terminate()
            elif what == 2:
                self.faults.away_until = asyncio.get_running_loop().time() + random.choice((1, 20))
                self.tell(f"the API server is away until {self.faults.away_until:.3f}")
            else:
                self.tell("the API server forgets")
                self.api.compact()

    def _replica(self, name: str) -> Replica:
        clock = Clock(
            lambda: asyncio.get_running_loop().time(), self._now, self.random(name).random
        )
        random = self.random(f"feeder of {name}")
        return Replica(
            self,
            self.faults,
            name,
            clock,
            random,
            self.broken,
            self._alone,
            self.failing_planner.plan,
        )

    def _now(self) -> datetime:
        self.cluster.catch_up()
        return self.cluster.time


def play(seed: int) -> list[str]:
    """Play a schedule; its trace. Raises Broken, with the end of the trace and the seed."""
    schedule: list[Schedule] = []

    async def begin() -> None:
        schedule.append(Schedule(seed))
        await schedule[0].play()

    try:
        with errors_break(lambda error: schedule[0].broken(error)):
            run(begin())
    except Exception as error:
        shown = "\n".join(schedule[0].trace[-TRACE_SHOWN:]) if schedule else ""
        alone = f"MIZAR_SIMULATION_SEED={seed} .venv/bin/pytest tests/simulation"
        raise Broken(f"{shown}\n{error!r}\nplay it again: {alone}") from error
    return schedule[0].trace


@contextmanager
def errors_break(broken: Callable[[str], None]) -> Iterator[None]:
    """Turns logged errors into failures of the schedule; other log lines are dropped, to save
    time."""
    before, handler = logging.root.manager.disable, _Errors(broken)
    logging.disable(logging.WARNING)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        logging.disable(before)


class _Errors(logging.Handler):
    def __init__(self, broken: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._broken = broken

    def emit(self, record: logging.LogRecord) -> None:
        if BUG in (told := record.getMessage()):
            return
        self._broken(f"logged: {told} {record.exc_info and record.exc_info[1]!r}")
