"""Now and then: does what NVML tells of a container agree with its own account?

Memory that the account leaves out is taken off the container's limit, and processes without the
shim are told to whoever runs them. Code that drivers load when it is first used is such memory: the
shim counts the uses, and keeps room until a look has found what they took (shim/src/uses.h).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_kube.waking import woken
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.compute.steward import Outside
from mizar_nodeagent.container import processes
from mizar_nodeagent.container.collect import living
from mizar_nodeagent.container.excess import Excess
from mizar_nodeagent.container.prestart import Complain
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.container.strangers import Key, Known, Stranger, Verdict, judge
from mizar_nodeagent.errors import CardsUnknown, RegionDamaged
from mizar_nodeagent.mind import Mind
from mizar_nodeagent.planning.isolation import wants_shim
from mizar_nodeagent.regions import limits_file, usage_snapshot

log = get_logger(__name__)

EVERY_S: Final = 2.0
SOON_S: Final = 0.1
"""After code was used for the first time, somebody has died, or something has changed ..."""
SOON_LOOKS: Final = 11
"""... for so many looks, unless they agree sooner."""
STEADY: Final = 3
"""Looks, EVERY_S apart, that find a stranger before it is told: who is just ending is no member any
more, but may be with NVML still."""
TRIES: Final = 3
REST: Final = 3
"""A look is followed by a rest of so many times its length, however many processes there are."""


class Inspection:
    """Looks at the containers that should have the shim. `tell` gets what is not accounted for."""

    def __init__(
        self,
        mind: Mind,
        slots: Slots,
        cards: CardSource,
        tell: Callable[[Mapping[Key, Outside]], None],
        complain: Complain,
        proc: Path = processes.PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mind = mind
        self._slots = slots
        self._cards = cards
        self._tell = tell
        self._complain = complain
        self._proc = proc
        self._clock = clock
        self._hurried = asyncio.Event()
        self._excess: dict[Key, Excess] = {}
        self._steady: list[Verdict] = []
        self._steady_at = -math.inf
        self._told: set[tuple[str, int]] = set()
        self.strangers: Sequence[Stranger] = ()

    def hurry(self) -> None:
        """Code was used for the first time: look soon, until all looks agree. From the loop's
        thread."""
        self._hurried.set()

    async def run(self) -> None:
        """Look for ever."""
        soon, took = 0, 0.0
        while True:
            rest = max(SOON_S, REST * took)
            await asyncio.sleep(rest)
            if not soon:
                await woken(self._hurried, within=EVERY_S - rest)
            soon = SOON_LOOKS if self._hurried.is_set() else max(soon - 1, 0)
            self._hurried.clear()
            began = self._clock()
            try:
                await self.look()
                soon *= not all(one.settled for one in self._excess.values())
            except CardsUnknown as error:
                soon = 0
                log.debug("nobody can tell who uses the cards", error=error)
            took = self._clock() - began

    async def look(self) -> None:
        """Compare once, or again where somebody has moved meanwhile. Raises CardsUnknown."""
        for _ in range(TRIES):
            verdict = await self._compare()
            if all(one.sure for one in verdict.findings.values()):
                break
        self._conclude(verdict)

    async def _compare(self) -> Verdict:
        before = await asyncio.to_thread(self._containers)
        uuids = {uuid for one in before for uuid in one.holdings}
        workers = await self._cards.workers(uuids) if uuids else {}
        after = await asyncio.to_thread(self._containers)
        pids = {pid for found in workers.values() for pid in found}
        who = await asyncio.to_thread(processes.of_containers, pids, self._proc)
        return judge(workers, who, before, after)

    def _conclude(self, verdict: Verdict) -> None:
        self._excess = {key: self._excess.get(key) or Excess() for key in verdict.findings}
        moved = [self._excess[key].see(found) for key, found in verdict.findings.items()]
        if any(moved):
            self.hurry()
        told = {key: outside for key, one in self._excess.items() if (outside := one.outside)}
        self._tell(told)
        if (now := self._clock()) >= self._steady_at + EVERY_S:
            self._steady_at = now
            self._judge_strangers(verdict)

    def _judge_strangers(self, verdict: Verdict) -> None:
        self._steady = [*self._steady, verdict][-STEADY:]
        self.strangers = _seen_always(self._steady) if len(self._steady) == STEADY else ()
        for stranger in self.strangers:
            self._report(stranger)
        self._told &= {_identity(one) for one in verdict.strangers}

    def _report(self, stranger: Stranger) -> None:
        if _identity(stranger) in self._told:
            return
        self._told.add(_identity(stranger))
        sentence = _sentence(stranger)
        log.warning("past the shim", problem=sentence, card=stranger.uuid, **stranger.owner.names)
        self._complain(stranger.owner, EventReason.ISOLATION_NOT_ENFORCED, sentence)

    def _containers(self) -> list[Known]:
        view, slots = self._mind.view, self._slots.all()
        pods = {pod.uid: pod for pod in (view.pods or {}).values()}
        holding = {slot.name for slot in living(slots, view)}
        found = []
        for slot in slots:
            pod = pods.get(slot.owner.pod_uid) if slot.owner else None
            if slot.owner is None or pod is None or not self._has_shim(slot):
                continue
            ids = {one for one, name in pod.container_ids if name == slot.owner.container}
            # A file that is gone or damaged says nothing, so its container holds nothing by it.
            known = _known(slot, pod.uids, ids)
            # Init containers hold nothing in claims, but live while they have processes.
            if known and (slot.name in holding or known.members):
                found.append(known)
        return found

    def _has_shim(self, slot: Slot) -> bool:
        try:
            carving = self._mind.carving_of(DeviceID.parse(min(slot.ids)))
        except (DeviceIDRefused, ValueError):
            return False
        return carving is not None and slot.shim and wants_shim(carving.carve.isolation)


def _known(slot: Slot, uids: frozenset[str], ids: Collection[str]) -> Known | None:
    assert slot.owner is not None
    try:
        region = limits_file.read(slot.limits)
    except (OSError, RegionDamaged):
        return None
    uuids = [card.uuid.decode(errors="replace") for card in region.cards[: region.card_count]]
    try:
        found = usage_snapshot.take(slot.usage, len(uuids))
    except (OSError, RegionDamaged):
        found = usage_snapshot.empty(len(uuids))
    holdings = dict(zip(uuids, found.holdings, strict=True))
    uses = {uuid: card.code_uses for uuid, card in zip(uuids, found.cards, strict=True)}
    return Known(slot.name, slot.owner, uids, frozenset(ids), holdings, found.alive, uses)


def _seen_always(verdicts: Sequence[Verdict]) -> list[Stranger]:
    """Those that every look has found."""
    always = set.intersection(*({_identity(one) for one in it.strangers} for it in verdicts))
    return [one for one in verdicts[-1].strangers if _identity(one) in always]


def _identity(stranger: Stranger) -> tuple[str, int]:
    return stranger.uuid, stranger.process.pid


def _sentence(stranger: Stranger) -> str:
    process = stranger.process
    return (
        f"process {process.name} ({process.member[0]}) of container {stranger.owner.container} "
        f"holds {stranger.bytes >> 20} MiB of card {stranger.uuid} without Mizar's shim, so its "
        "limits don't bind it: the program is static, or not of glibc, or goes around "
        "/etc/ld.so.preload; use a glibc image and a dynamic program, or isolation.backend None"
    )
