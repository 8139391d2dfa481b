"""One schedule of the node agent: everything that a seed decides."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from simulation.node.agent import AgentProcess
from simulation.node.api import now
from simulation.node.disk import Killed
from simulation.node.kubelet import Container, Held
from simulation.node.rules import Rules
from simulation.node.world import OWNER_PID, POOLS, TENANT, World
from simulation.rules import Broken
from simulation.schedule import TRACE_SHOWN, errors_break
from support.virtual_time import run

REST_S = 80.0
"""Longer than all that the agent waits for."""
AGAIN_S = 35.0
"""Longer than all that a new agent waits for, when nothing has changed."""
KEPT_S = 150.0
"""Longer than an unused slot is kept, by the node's clock, which jumps so far."""
MEMORY = Path("/dev/shm")

FIRST, SIDECAR = Container("first", init=True), Container("sidecar", sidecar=True)
SHAPES: tuple[tuple[Container, ...], ...] = (
    (Container(),),
    (Container(),),
    (Container(),),
    (Container(count=2),),
    (Container(), Container("second")),
    (FIRST, Container()),
    (FIRST, Container(count=2)),
    (Container("first", 2, init=True), Container()),
    (FIRST, Container("next", init=True), Container(), Container("second")),
    (SIDECAR, Container()),
    (FIRST, SIDECAR, Container()),
)
"""The containers of share pods."""


class Schedule:
    """All parts of the simulation; `trace` is what happened, in order."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.trace: list[str] = []
        self._broken: list[str] = []
        self.random = Random(f"{seed} node")
        draw = self.random.choice
        kind = draw(("", "device nodes", "mig"))
        self.world = World(
            self.random,
            folder,
            self.tell,
            self.broken,
            self.look,
            mig=kind == "mig",
            names_nodes=kind == "device nodes",
            dra=kind != "mig" and Random(f"{seed} claims").random() < 0.4,
            lag=draw((0.1, 0.4, 3.0)),
        )
        self.world.kubelet.slow = draw((0.01, 0.1, 1.5))
        self.rules = Rules(self.world, self.broken)
        self.agent: AgentProcess | None = None
        self._ending: asyncio.Task[None] | None = None
        self.every = draw((0.1, 0.5, 2.0, 8.0))
        self.acts = self.random.randint(10, 50)
        self.likes = [draw(ACTS) for _ in range(self.random.randint(2, 6))]

    def tell(self, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{now():9.3f} {what}")

    def broken(self, rule: str) -> None:
        """A rule was broken: the schedule ends at its next step."""
        self.tell(f"BROKEN {rule}")
        self._broken.append(rule)

    def look(self) -> None:
        """Something has changed."""
        if not self._broken:
            self.rules.look()

    async def sleep(self, seconds: float) -> None:
        """Let it go on for that long. Raises Broken when a rule is broken."""
        await asyncio.sleep(seconds)
        if self._broken:
            raise Broken(self._broken[0])

    # ---- the agent's life ----

    def start_agent(self) -> None:
        """Start a process, if none lives."""
        if self.agent is not None and not self.agent.dead:
            return
        try:
            self.agent = AgentProcess(self.world, self.random)
        except (OSError, Killed) as error:
            self.tell(f"the agent does not start: {error!r}")
            return
        self.world.disk.killed = self.kill_agent
        self.world.kubelet.agent = self.agent
        self.tell("the agent starts")

    def kill_agent(self) -> None:
        """The process is killed."""
        if self.agent is not None and not self.agent.dead:
            self.tell("the agent is killed")
            self.agent.kill()
            self.world.kubelet.disconnect()

    # ---- what happens ----

    async def play(self) -> None:
        """From beginning to end. Raises Broken."""
        world = self.world
        running = asyncio.ensure_future(world.run())
        running.add_done_callback(self._ended)
        self.start_agent()
        for pool in POOLS:
            if self.random.random() < 0.5:
                world.lend(pool)
        for _ in range(self.random.randint(1, 3)):
            world.ask_shadow(self.random.choice((2, 2, 4)))
        await self.sleep(self.random.choice((0.5, 5.0)))
        for _ in range(self.acts):
            act = self.random.choice(self.likes if self.random.random() < 0.5 else ACTS)
            act(self)
            await self.sleep(self.random.expovariate(1 / self.every))
            if self.agent is not None and self.agent.dead and self.random.random() < 0.6:
                self.start_agent()
        await self._rests()

    async def _rests(self) -> None:
        """All faults end, and all is as it should be."""
        world, kubelet = self.world, self.world.kubelet
        self.tell("all faults end")
        world.disk.full, world.disk.kill_in = False, None
        world.cards.away = False
        world.cards.come_back()
        world.api.away_until = 0.0
        world.lag, world.pace, kubelet.slow = 0.4, 0.7, 0.02
        if not kubelet.up:
            kubelet.start(lost_record=False)
        if self._ending is not None:
            await asyncio.wait([self._ending])
        self.start_agent()
        assert self.agent is not None
        self.agent.watch.lag = 0.4
        for pod in world.shadows():
            if pod.uid not in world.promised:
                world.api.change(pod.uid, drain="")
        await self.sleep(REST_S / 2)
        world.skew += KEPT_S
        await self.sleep(REST_S / 2)
        self.rules.at_rest(self.agent)
        await self.sleep(0)
        self.kill_agent()
        self.start_agent()
        await self.sleep(AGAIN_S)
        self.rules.at_rest(self.agent)
        await self.sleep(0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.broken(f"the model of the node ended: {task.exception()!r}")

    def running(self) -> list[Held]:
        """What running containers have."""
        return list(self.rules.running())

    # ---- single events ----

    def share_comes(self) -> None:
        draw = self.random.choice
        self.world.ask_share(draw((2, 2, 4)), draw(SHAPES), self.random.random() < 0.5)

    def shadow_comes(self) -> None:
        if len(self.world.shadows()) < 3:
            self.world.ask_shadow(self.random.choice((2, 4)))

    def pod_ends(self) -> None:
        if pods := self.world.shares():
            pod = self.random.choice(pods)
            self.tell(f"{pod.name} ends")
            self.world.end(pod.uid)

    def container_restarts(self) -> None:
        if has := self.running():
            held = self.random.choice(has)
            self.tell(f"the container {held.name} restarts")
            self.world.kubelet.restart_container(held.place)

    def drain(self) -> None:
        if shadows := self.world.shadows():
            self.world.ask_drain(self.random.choice(shadows))

    def drain_is_called_off(self) -> None:
        found = [one for one in self.world.shadows() if one.drain]
        if found and not self.world.api.is_away:
            pod = self.random.choice(found)
            self.world.promised.pop(pod.uid, None)
            self.world.api.change(pod.uid, drain="")
            self.tell(f"the drain of {pod.name} is called off")

    def shadow_is_lost(self) -> None:
        if shadows := self.world.shadows():
            pod = self.random.choice(shadows)
            self.tell(f"{pod.name} is deleted by force")
            self.world.end(pod.uid)

    def recarve(self) -> None:
        if shadows := self.world.shadows():
            pod = self.random.choice(shadows)
            self.world.recarve(pod)
            self.tell(f"{pod.name} is carved anew")

    def agent_is_killed(self) -> None:
        self.kill_agent()

    def agent_starts(self) -> None:
        self.start_agent()

    def agent_dies_writing(self) -> None:
        self.world.disk.kill_in = self.random.randrange(12)
        self.tell("the agent will die while it writes")

    def agent_dies_on_a_full_disk(self) -> None:
        """It dies while it uses the room that it has reserved."""
        self.world.disk.full = True
        self.world.disk.kill_in = self.random.randrange(6)
        self.tell("the disk is full, and the agent will die while it writes")
        self.recarve()

    def agent_ends(self) -> None:
        if self.agent is not None and not self.agent.dead:
            self.tell("the agent ends by itself")
            self._ending = asyncio.ensure_future(self.agent.end())

    def kubelet_restarts(self) -> None:
        kubelet = self.world.kubelet
        if kubelet.up:
            self.tell("the kubelet stops")
            kubelet.stop()
        else:
            self.tell("the kubelet starts")
            kubelet.start(lost_record=False)

    def kubelet_loses_its_record(self) -> None:
        kubelet = self.world.kubelet
        self.tell("the kubelet starts without its record")
        kubelet.stop()
        kubelet.start(lost_record=True)

    def disk(self) -> None:
        self.world.disk.full = not self.world.disk.full
        self.tell(f"the disk is full: {self.world.disk.full}")

    def api_is_away(self) -> None:
        self.world.api.away_until = now() + self.random.choice((1.0, 10.0, 60.0))
        self.tell("the API server is away")

    def clock_jumps(self) -> None:
        self.world.skew += self.random.choice((-86400.0, -5.0, 5.0, 400.0, 86400.0))
        self.tell(f"the clock is wrong by {self.world.skew}")

    def card_drops(self) -> None:
        cards = self.world.cards
        if cards.minor:
            uuid = self.random.choice(sorted(cards.minor))
            self.tell(f"{uuid} drops off the bus")
            cards.drop(uuid)

    def cards_come_back(self) -> None:
        self.tell("all cards are back")
        self.world.cards.come_back()

    def cards_are_renumbered(self) -> None:
        self.tell("the driver renumbers the cards")
        self.world.cards.renumber()

    def nvml_hangs(self) -> None:
        self.world.cards.away = not self.world.cards.away
        self.tell(f"NVML is away: {self.world.cards.away}")

    def owner_comes(self) -> None:
        self.world.ask_whole(self.random.random() < 0.8)

    def spot_comes(self) -> None:
        self.world.ask_spot()

    def owner_goes(self) -> None:
        found = [
            one
            for one in sorted(self.world.api.pods.values(), key=lambda pod: pod.key)
            if not one.shadow and not one.requests
        ]
        if found:
            self.world.end(self.random.choice(found).uid)

    def owner_wakes_or_sleeps(self) -> None:
        """A process of the node works on a card, or no longer."""
        uuid = self.random.choice(sorted(self.world.cards.all))
        working = self.world.cards.working
        if working.pop(uuid, None) is None:
            working[uuid] = {OWNER_PID: 50}
        self.tell(f"owners work on {sorted(working)}")

    def spot_rule_changes(self) -> None:
        pool = self.random.choice(POOLS)
        if self.world.lending.pop(pool, None) is None:
            self.world.lend(
                pool, self.random.choice(("", "", "Other")), self.random.choice(("", TENANT))
            )
        self.tell(f"cards are lent by the pools {sorted(self.world.lending)}")

    def time_passes(self) -> None:
        """Nothing happens."""


Act = Callable[[Schedule], None]
ACTS: tuple[Act, ...] = (
    Schedule.share_comes,
    Schedule.share_comes,
    Schedule.share_comes,
    Schedule.share_comes,
    Schedule.shadow_comes,
    Schedule.shadow_comes,
    Schedule.pod_ends,
    Schedule.pod_ends,
    Schedule.container_restarts,
    Schedule.drain,
    Schedule.drain,
    Schedule.drain_is_called_off,
    Schedule.shadow_is_lost,
    Schedule.recarve,
    Schedule.agent_is_killed,
    Schedule.agent_starts,
    Schedule.agent_dies_writing,
    Schedule.agent_dies_on_a_full_disk,
    Schedule.agent_ends,
    Schedule.kubelet_restarts,
    Schedule.kubelet_restarts,
    Schedule.kubelet_loses_its_record,
    Schedule.disk,
    Schedule.api_is_away,
    Schedule.clock_jumps,
    Schedule.card_drops,
    Schedule.cards_come_back,
    Schedule.cards_are_renumbered,
    Schedule.nvml_hangs,
    Schedule.owner_comes,
    Schedule.owner_goes,
    Schedule.owner_wakes_or_sleeps,
    Schedule.spot_comes,
    Schedule.spot_rule_changes,
    Schedule.time_passes,
)


def play(seed: int) -> list[str]:
    """Play a schedule; its trace. Raises Broken, with the end of the trace and the seed."""
    schedule: list[Schedule] = []
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="mizar-node-"))

    async def begin() -> None:
        schedule.append(Schedule(seed, folder))
        with schedule[0].world.disk.patched():
            await schedule[0].play()

    try:
        with errors_break(lambda error: None):
            run(begin())
    except Exception as error:
        shown = "\n".join(schedule[0].trace[-TRACE_SHOWN:]) if schedule else ""
        alone = f"MIZAR_SIMULATION_SEED={seed} .venv/bin/pytest tests/simulation/test_node_agent.py"
        raise Broken(f"{shown}\n{error!r}\nplay it again: {alone}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return schedule[0].trace
