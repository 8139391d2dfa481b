"""Now and then: does what NVML tells of a container agree with its own account?

Memory that the account leaves out is taken off the container's limit, and processes without the
shim are told to whoever runs them. Code that drivers load when it is first used is such memory: the
shim counts the uses, and keeps room until a look has found what they took (shim/src/uses.h).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.names import EventReason
from mizar_nodeagent import limits, usage
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.compute.steward import Outside
from mizar_nodeagent.container import processes
from mizar_nodeagent.container.collect import living
from mizar_nodeagent.container.prestart import Complain
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.container.strangers import Key, Known, Stranger, Verdict, judge
from mizar_nodeagent.errors import CardsUnknown, RegionDamaged
from mizar_nodeagent.mind import Mind
from mizar_nodeagent.planning.isolation import wants_shim

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
SOON_S: Final = 0.1
"""After code was used for the first time, until so many looks have seen it."""
LOOKS: Final = 3
"""NVML and the account cannot be read at one instant, so what is allocated or freed in between
looks like a difference. Only what so many looks agree on is one."""
REST: Final = 5
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
        self._verdicts: list[Verdict] = []
        self._steady: list[Verdict] = []
        self._steady_at = -math.inf
        self._told: set[tuple[str, int]] = set()
        self.strangers: Sequence[Stranger] = ()

    def hurry(self) -> None:
        """Code was used for the first time: look soon, until it shows. From the loop's thread."""
        self._hurried.set()

    async def run(self) -> None:
        """Look for ever."""
        soon, took = 0, 0.0
        while True:
            rest = max(SOON_S, REST * took)
            await asyncio.sleep(rest)
            if not soon:
                await self._until_hurried(EVERY_S - rest)
            soon = LOOKS if self._hurried.is_set() else max(soon - 1, 0)
            self._hurried.clear()
            began = time.monotonic()
            try:
                await self.look()
            except CardsUnknown as error:
                soon = 0
                log.debug("nobody can tell who uses the cards: %s", error)
            took = time.monotonic() - began

    async def _until_hurried(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), max(0.0, seconds))

    async def look(self) -> None:
        """Compare once. Raises CardsUnknown."""
        before = await asyncio.to_thread(self._containers)
        uuids = {uuid for one in before for uuid in one.held}
        workers = await self._cards.workers(uuids) if uuids else {}
        pids = {pid for found in workers.values() for pid in found}
        who = await asyncio.to_thread(processes.of_containers, pids, self._proc)
        after = await asyncio.to_thread(self._containers)
        self._conclude(judge(workers, who, _most(before, after)))

    def _conclude(self, verdict: Verdict) -> None:
        self._verdicts = [*self._verdicts, verdict][-LOOKS:]
        if len(self._verdicts) == LOOKS:
            self._tell(_agreed(self._verdicts))
        # Who is just ending is among the members no more, but with NVML still: not for seconds.
        if (now := self._clock()) >= self._steady_at + EVERY_S:
            self._steady_at = now
            self._judge_strangers(verdict)

    def _judge_strangers(self, verdict: Verdict) -> None:
        self._steady = [*self._steady, verdict][-LOOKS:]
        self.strangers = _seen_always(self._steady) if len(self._steady) == LOOKS else ()
        for stranger in self.strangers:
            self._report(stranger)
        self._told &= {_identity(one) for one in verdict.strangers}

    def _report(self, stranger: Stranger) -> None:
        if _identity(stranger) in self._told:
            return
        self._told.add(_identity(stranger))
        sentence = _sentence(stranger)
        log.warning("%s/%s: %s", stranger.owner.namespace, stranger.owner.pod, sentence)
        self._complain(stranger.owner, EventReason.ISOLATION_NOT_ENFORCED, sentence)

    def _containers(self) -> list[Known]:
        view = self._mind.view
        pods = {pod.uid: pod for pod in (view.pods or {}).values()}
        found = []
        for slot in living(self._slots.all(), view):
            assert slot.owner is not None
            pod = pods.get(slot.owner.pod_uid)
            if pod is None or not self._has_shim(slot):
                continue
            ids = {one for one, name in pod.container_ids if name == slot.owner.container}
            # A file that is gone or damaged says nothing, so its container holds nothing by it.
            known = _known(slot, pod.uids, ids)
            found += [known] if known else []
        return found

    def _has_shim(self, slot: Slot) -> bool:
        try:
            carving = self._mind.carving_of(DeviceID.parse(min(slot.ids)))
        except (DeviceIDRefused, ValueError):
            return False
        return carving is not None and wants_shim(carving.carve.isolation)


def _known(slot: Slot, uids: frozenset[str], ids: Collection[str]) -> Known | None:
    assert slot.owner is not None
    try:
        region = limits.read(slot.limits)
    except (OSError, RegionDamaged):
        return None
    uuids = [card.uuid.decode(errors="replace") for card in region.cards[: region.card_count]]
    try:
        found = usage.survey(slot.usage, len(uuids))
    except (OSError, RegionDamaged):
        found = usage.Survey(tuple(usage.CardUse(0, 0) for _ in uuids), 0, frozenset())
    cards = dict(zip(uuids, found.cards, strict=True))
    held = {uuid: use.bytes for uuid, use in cards.items()}
    uses = {uuid: use.code_uses for uuid, use in cards.items()}
    return Known(slot.name, slot.owner, uids, frozenset(ids), held, found.members, uses)


def _most(before: Iterable[Known], after: Iterable[Known]) -> list[Known]:
    """What each held at most, and who was a member at any time, around NVML's answer; and the uses
    of code before it."""
    earlier = {one.slot: one for one in before}
    return [
        Known(
            now.slot,
            now.owner,
            now.pod_uids,
            now.ids,
            {uuid: max(size, then.held.get(uuid, 0)) for uuid, size in now.held.items()},
            now.members | then.members,
            then.code_uses,
        )
        for now in after
        if (then := earlier.get(now.slot))
    ]


def _agreed(verdicts: Sequence[Verdict]) -> dict[Key, Outside]:
    """What every look has found at least, and the uses of code that the first one can have seen."""
    return {
        key: Outside(
            min(one.unaccounted[key] for one in verdicts), verdicts[0].code_uses.get(key, 0)
        )
        for key in verdicts[-1].unaccounted
        if all(key in one.unaccounted for one in verdicts)
    }


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
