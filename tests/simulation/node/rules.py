"""What must hold on the simulated node: at every moment, and when nothing has gone wrong for a
while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from mizar_core.carve import limits_for
from mizar_core.device_ids import DeviceID
from mizar_core.names import PHYSICAL_RESOURCE, SPOT_RESOURCE
from mizar_nodeagent import agent_checkpoint
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet import allocated_dra_cards
from mizar_nodeagent.planning.shadow_status import UNSAVED
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_STOPPED
from mizar_nodeagent.reserved_room import RESERVED_BYTES
from mizar_nodeagent.spot.owners import rule_of
from simulation.node.agent import BOOT, AgentProcess
from simulation.node.api import now
from simulation.node.kubelet import Held, Place
from simulation.node.world import World, key_of

CHECKPOINTS = {"checkpoint.json", "checkpoint.reserve-1", "checkpoint.reserve-2"}
"""The checkpoint and the room that is reserved for it, which change places."""
FILES = {"slots", "lib", "contexts.json", allocated_dra_cards.FILE, *CHECKPOINTS}
"""The names in the agent's folder at rest."""


class Rules:
    """Looks at the node whenever something has changed; breaches go to `broken`. `shadow`: of each
    container, the UIDs of the shadow pods by whose devices it runs, by device."""

    def __init__(self, world: World, broken: Callable[[str], None]) -> None:
        self.world = world
        self.broken = broken
        self.shadow: dict[Place, dict[str, str]] = {}
        self._seen: set[Place] = set()

    # ---- at every moment ----

    def look(self) -> None:
        """Check what must always hold."""
        kubelet = self.world.kubelet
        for place in kubelet.held.keys() - self._seen:
            self._given(kubelet.held[place])
        self._seen &= kubelet.held.keys()
        self._one_holder()
        self._one_shadow_pod()
        self._drains_end()

    def _given(self, held: Held) -> None:
        """The kubelet has recorded what a container gets."""
        self._seen.add(held.place)
        if held.resource == SPOT_RESOURCE:
            return
        found = self.shadow[held.place] = {}
        for one in held.ids:
            shadow = self.world.api.pods.get(key_of(one))
            found[one] = shadow.uid if shadow else ""
            if shadow and shadow.uid in self.world.promised:
                self.broken(f"{held.name} gets {one}, which is said to be drained")

    def running(self) -> Iterator[Held]:
        """What the containers have that run, whether or not the kubelet still knows it."""
        kubelet = self.world.kubelet
        for place in sorted(kubelet.running):
            if (held := kubelet.held.get(place)) is not None:
                yield held

    def _one_holder(self) -> None:
        holders: defaultdict[str, list[str]] = defaultdict(list)
        for held in self.running():
            for one in held.ids:
                holders[one].append(held.name)
        for device, names in holders.items():
            if len(names) > 1 and not self._but_one_are_stopped(device):
                self.broken(f"{device} has the holders {names}")

    def _but_one_are_stopped(self, device: str) -> bool:
        """Whether at most one of its holders can start work."""
        able = [one for one in self.running() if device in one.ids and not is_stopped(one)]
        return len(able) <= 1

    def _one_shadow_pod(self) -> None:
        """All that work on a card have devices of one shadow pod."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        for held in self.running():
            shadows = set(self.shadow.get(held.place, {}).values())
            if len(shadows) == 1 and not is_stopped(held):  # else which card is whose is not told
                for uuid in held.cards:
                    users[uuid] |= shadows - {""}
        for uuid, shadows in users.items():
            if len(shadows) > 1:
                self.broken(f"{uuid} is worked on for {sorted(shadows)}")

    def _drains_end(self) -> None:
        """A full disk keeps no drain from being saved where room is reserved for that."""
        for report in self.world.api.reports.values():
            unsaved = any(one.message == UNSAVED for one in report.conditions)
            if unsaved and self._has_reserve():
                self.broken(f"the drain of {report.key} cannot be saved")

    def _has_reserve(self) -> bool:
        """Whether the checkpoint can always be written: two of its files have the size for it."""
        files = (self.world.state_dir / name for name in CHECKPOINTS)
        sizes = [path.stat().st_size for path in files if path.exists()]
        return sum(size >= RESERVED_BYTES for size in sizes) >= 2

    # ---- at rest ----

    def at_rest(self, agent: AgentProcess) -> None:
        """Check what must hold when nothing has gone wrong for minutes."""
        self._all_is_offered(agent)
        self._nobody_waits()
        self._limits_are_right(agent)
        self._cards_are_lent_by_their_rules()
        self._no_files_are_left()
        self._checkpoint_is_right(agent)
        self._nothing_is_remembered(agent)

    def _all_is_offered(self, agent: AgentProcess) -> None:
        world = self.world
        for pod in world.shadows():
            if pod.uid in world.kubelet.unclaimed:
                continue  # nobody knows its cards but an agent that knew them before
            report = world.api.reports.get(pod.owner_uid)
            ready = report.conditions[0] if report else None
            carve = pod.carve
            if carve.closed and ready is not None:
                continue
            if ready is None or (ready.status, ready.reason) != ("True", "Serving"):
                self.broken(f"{pod.name} is not offered: {ready}")
                continue
            names = {f"{pod.namespace}/{pod.name}-{index}" for index in range(carve.devices)}
            missing = names - world.kubelet.healthy(carve.resource)
            if missing:
                self.broken(f"{sorted(missing)} are not offered to the kubelet")
        for resource, devices in world.kubelet.devices.items():
            if resource == SPOT_RESOURCE or resource not in agent.plugins.lists:
                continue
            known = {(one.namespace, one.name): one.carve for one in world.shadows()}
            left = {one for one in devices if key_of(one) not in known}
            held = {one for has in world.kubelet.held.values() for one in has.ids}
            if left - held:
                self.broken(f"{sorted(left - held)} are listed and nobody's")
            offered = sum(
                healthy and (one in held or not known[key_of(one)].closed)
                for one, healthy in devices.items()
                if key_of(one) in known
            )
            counts = world.api.node.get(resource)
            if offered and (counts is None or counts.allocatable != offered):
                self.broken(f"{offered} of {resource} are to be had, and the node says {counts}")

    def _nobody_waits(self) -> None:
        world, kubelet = self.world, self.world.kubelet
        for pod in world.asked:
            if pod.requests:
                ((resource, count),) = pod.requests
                used = sum(one.requested(resource) for one in world.shares())
                counts = world.api.node.get(resource)
                if counts and used + count <= counts.allocatable:
                    self.broken(f"{pod.name} waits in vain")
        for pod in world.shares():
            wanted = {(pod.uid, one.name) for one in kubelet.containers[pod.uid] if not one.init}
            if not wanted <= kubelet.running and pod.requests[0][0] != SPOT_RESOURCE:
                self.broken(f"{pod.name} is on the node and does not run")

    def _limits_are_right(self, agent: AgentProcess) -> None:
        pods = {pod.uid: pod for pod in self.world.shadows()}
        for held in self.running():
            if held.resource == SPOT_RESOURCE or held.folder is None:
                continue
            shadows = set(self.shadow[held.place].values())
            if not shadows <= pods.keys():
                if not is_stopped(held):
                    self.broken(f"{held.name} works, and its shadow pod is gone")
                continue
            wanted = {}
            for uid in shadows:
                pod = pods[uid]
                carving = agent.state.carvings.get(pod.key)
                if carving is None:
                    self.broken(f"{pod.name} has no carving")
                    continue
                ids = [DeviceID.parse(one) for one in held.ids if key_of(one) == pod.key]
                cards = sorted(self.world.kubelet.cards[uid])
                facts = [Card(one, self.world.cards.all[one].memory_bytes, "") for one in cards]
                for one in limits_for(pod.carve, facts, [each.index for each in ids]):
                    wanted[one.uuid] = one.memory_bytes, one.core_share, one.compute_mode
            try:
                region = limits_file.read(held.folder / "limits")
            except Exception as error:
                self.broken(f"the limits of {held.name} are damaged: {error!r}")
                continue
            found = {
                one.uuid: (one.memory_bytes, one.core_share, one.compute_mode)
                for one in limits_file.card_limits(region)
            }
            if found != wanted:
                self.broken(f"{held.name} has the limits {found} instead of {wanted}")

    def _cards_are_lent_by_their_rules(self) -> None:
        """Borrowers work only on cards whose pool lends them, and whose owners agree and are
        idle."""
        for held in self.running():
            if held.resource == SPOT_RESOURCE and not is_stopped(held):
                for uuid in held.cards:
                    if objection := self._objection(uuid):
                        self.broken(f"{held.name} borrows {uuid}: {objection}")

    def _objection(self, uuid: str) -> str | None:
        """Why the card must not be lent."""
        world, kubelet = self.world, self.world.kubelet
        pods = {one.uid: one for one in world.api.pods.values()}
        holders = [pods[uid] for uid, cards in kubelet.cards.items() if uuid in cards]
        if any(one.uid in kubelet.unclaimed for one in holders):
            return None  # the agent cannot know the owner
        if not holders:
            return "nobody holds it"
        pool = holders[0].carve.pool if holders[0].shadow else None
        card = world.cards.all[uuid]
        rule = rule_of(card, PHYSICAL_RESOURCE, {}, world.spot_rules(), pool)
        if rule is None:
            return f"pool {pool} does not lend it"
        sharing = [one.pod for one in self.running() if uuid in one.cards]
        owners = [one for one in (*holders, *sharing) if not one.shadow]
        for one in owners:
            agrees = one.low_power or one.namespace in rule.spot.namespaces
            if not agrees and one.requested(SPOT_RESOURCE) == 0:
                return f"{one.name} has not agreed"
        return "its owner works" if world.cards.working.get(uuid) else None

    def _no_files_are_left(self) -> None:
        world = self.world
        kubelet = world.kubelet
        living = [one for one in kubelet.held.values() if one.pod.uid in kubelet.pods]
        used = {one.folder.name for one in living if one.folder}
        # An init container that has ended does not start again.
        ended = (one for one in living if one.place in kubelet.done)
        needed = used - {one.folder.name for one in ended if one.folder}
        there = {one.name for one in (world.state_dir / "slots").iterdir()}
        # A container whose devices the kubelet has forgotten keeps all slots of these.
        forgotten = kubelet.running - kubelet.recorded
        if needed - there or (there - used and not forgotten):
            self.broken(f"slots {sorted(there - used)} are left, {sorted(needed - there)} missing")
        if not self._has_reserve():
            self.broken("no room is reserved for the checkpoint")
        if more := {one.name for one in world.state_dir.iterdir()} - FILES:
            self.broken(f"the agent left {sorted(more)}")

    def _checkpoint_is_right(self, agent: AgentProcess) -> None:
        path = self.world.state_dir / "checkpoint.json"
        saved = agent_checkpoint.load(path, now(), BOOT).carvings
        known = agent.state.carvings
        if {key: one.to_dict() for key, one in saved.items()} != {
            key: one.to_dict() for key, one in known.items()
        }:
            self.broken(f"the checkpoint has {sorted(saved)} instead of {sorted(known)}")

    def _nothing_is_remembered(self, agent: AgentProcess) -> None:
        """The agent's memory does not grow with the pods that it has seen."""
        uids = {pod.uid for pod in self.world.api.pods.values()}
        if left := agent.agent._seen_at.keys() - uids:
            self.broken(f"the agent remembers pods that are gone: {sorted(left)}")
        if agent.state.allocating:
            self.broken(f"allocations never end: {agent.state.allocating}")


def is_stopped(held: Held) -> bool:
    """Whether the container can start no work on any of its cards."""
    if held.folder is None:
        return False
    try:
        region = limits_file.read(held.folder / "limits")
    except Exception:
        return True  # no shim accepts it
    cards = region.cards[: region.card_count]
    return all(one.compute_mode == COMPUTE_STOPPED for one in cards)
