"""Reads the cards by NVML, whose calls may block for long and so run in a thread of their own."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import pynvml

from mizar_kube.logs import get_logger
from mizar_nodeagent import mig
from mizar_nodeagent.cards import Card, ProcessLoad
from mizar_nodeagent.cuda_context import measure
from mizar_nodeagent.driver_root import load_driver
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.nvml_cards import all_cards, text

log = get_logger(__name__)

T = TypeVar("T")

EVENTS_EVERY_S = 0.5
"""Seconds between two looks for faults when there was none."""
RETRY_S = 5.0
"""Seconds between tries to register for faults."""
MINORS_WITHIN_S = 5.0
"""Most seconds that NVML may take for minor numbers, since the kubelet waits for Allocate
meanwhile."""
OTHERS_EVERY_S = 5.0
"""Seconds between two reads of a card's processes that render, or that compute by MPS."""
UTILIZATION_S = 1.2
"""Age in seconds of the oldest sample that counts for the utilization of a process. NVML takes a
sample at least this often, but reports none of a period in which the process did nothing: the mean
of a longer time would leave out the periods without work."""
RESTART_FIRST, RESTART_MOST = 3, 30
"""Number of reads from one restart of NVML to the next while a card is missing, at first and at
most. It doubles each time, since all other calls of NVML wait for a restart and a card may be gone
for good."""


class Nvml:
    """A CardSource over libnvidia-ml.so.1, which is loaded at the first `read`. `root`: folder in
    which the driver is installed. `nodes_root`: where the node's root is mounted; None if it is
    not.

    One thread makes all calls, so that NVML is never shut down during a call.
    """

    def __init__(self, root: Path = Path("/"), nodes_root: Path | None = None) -> None:
        self._root = root
        self._nodes_root = nodes_root
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._sampled: dict[str, int] = {}
        self._restart = _RestartTimes()
        self._events: Any = None
        self._others: dict[str, tuple[float, list[Any]]] = {}
        self._untold: list[tuple[str, int]] = []
        self._ready = False
        self._open = False
        self._starts = 0
        self._started = asyncio.Event()

    async def read(self, expected: Collection[str] = ()) -> Mapping[str, Card]:
        """The cards that answer now, by UUID. Raises CardsUnknown if NVML fails; then the next call
        starts NVML again."""
        try:
            cards = await self._run(lambda: self._read(expected))
        except pynvml.NVMLError as error:
            self._ready = False
            raise CardsUnknown(f"NVML: {error}; is the driver installed on this node?") from error
        self._started.set()
        return cards

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """Bytes of each process by card and PID, for the cards that answer; none before NVML
        runs."""
        if not self._ready:
            return {}
        found = await self._run(lambda: {uuid: self._workers(uuid) for uuid in uuids})
        return {uuid: workers for uuid, workers in found.items() if workers is not None}

    async def minors(self, uuids: Collection[str]) -> Mapping[str, int]:
        """Present minor numbers of those of these cards that answer. Waits for NVML's start, since
        a refusal would fail the pod for good. Raises CardsUnknown after MINORS_WITHIN_S, or if NVML
        does not answer."""
        try:
            async with asyncio.timeout(MINORS_WITHIN_S):
                await self._started.wait()
                found = await self._run(lambda: self._minors(uuids))
        except TimeoutError as error:
            raise CardsUnknown(f"NVML has not answered for {MINORS_WITHIN_S:g} s") from error
        return {uuid: minor for uuid, minor in found.items() if minor is not None}

    async def loads(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, ProcessLoad]]:
        """The processes' loads by card and PID, for the cards that report them; none before NVML
        runs."""
        if not self._ready:
            return {}
        found = await self._run(lambda: {uuid: self._loads(uuid) for uuid in uuids})
        return {uuid: loads for uuid, loads in found.items() if loads is not None}

    async def utilization(self, uuid: str) -> Mapping[int, float] | None:
        """The mean part of the card's time that each process used in its samples of the last
        UTILIZATION_S, by PID; None if the card does not report it, and before NVML runs."""
        if not self._ready:
            return None
        after = time.time_ns() // 1000 - int(UTILIZATION_S * 1e6)
        try:
            samples = await self._run(lambda: _samples(uuid, after))
        except pynvml.NVMLError as error:
            log.debug("a card does not report its processes' utilization", card=uuid, error=error)
            return None
        found: defaultdict[int, list[int]] = defaultdict(list)
        for pid, _, percent in samples:
            found[pid].append(percent)
        return {pid: fmean(one) / 100 for pid, one in found.items()}

    async def free_bytes(self, uuid: str) -> int:
        """Bytes of the card's memory that are free. Raises CardsUnknown."""
        try:
            return await self._run(lambda: _free_bytes(uuid))
        except pynvml.NVMLError as error:
            raise CardsUnknown(f"NVML does not report what is free on {uuid}: {error}") from error

    async def context_bytes(self, uuid: str) -> int:
        """Bytes of a CUDA context on the card, which is created there for a moment; 0 if they
        cannot be measured."""
        return await measure.context_bytes(self.workers, uuid)

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """Call `tell` with the card's UUID and the XID of each fault, for ever. Registers for
        faults again after NVML was restarted."""
        logged = ""
        while True:
            await self._started.wait()
            try:
                await self._follow(tell)
            except pynvml.NVMLError as error:
                if logged != str(error):
                    log.warning("NVML reports no faults of cards; trying again", error=error)
                logged = str(error)
                await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _follow(self, tell: Callable[[str, int], None]) -> None:
        start, events = await self._run(self._register)
        while start == self._starts:
            found = await self._run(lambda: self._next(start, events))
            for uuid, xid in found:
                tell(uuid, xid)
            if not found:
                await asyncio.sleep(EVENTS_EVERY_S)  # not in NVML, where all other calls would wait

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _read(self, expected: Collection[str]) -> dict[str, Card]:
        """The cards, as `read`. NVML lists the cards that it found at its start, so while a card is
        missing NVML is restarted now and then."""
        if not self._ready:
            self._start()
        cards = {card.uuid: card for card in all_cards()}
        if self._restart.is_due(not cards.keys() >= set(expected)):
            self._start()
            cards = {card.uuid: card for card in all_cards()}
        return cards

    def _workers(self, uuid: str) -> dict[int, int] | None:
        """Bytes by PID on one card; None if it does not answer. Only the processes that compute are
        read at each call: each list takes up to 50 ms, and audits may follow every 0.1 s."""
        if (computing := _computing(uuid)) is None:
            return None
        now = time.monotonic()
        at, others = self._others.get(uuid, (-math.inf, []))
        if now - at >= OTHERS_EVERY_S:
            others = _others(uuid)
            self._others[uuid] = now, others
        sizes: dict[int, int] = {}
        for one in (*computing, *others):
            # A process may be in two lists, with the same bytes. None: the driver reports no bytes.
            sizes[int(one.pid)] = max(sizes.get(int(one.pid), 0), int(one.usedGpuMemory or 0))
        return sizes

    def _loads(self, uuid: str) -> dict[int, ProcessLoad] | None:
        """Loads by PID on one card; None if it does not report them. A new process has no sample
        yet, and one without work none at all. At the first call there are no samples, since earlier
        ones may be from long ago."""
        workers = self._workers(uuid)
        if workers is None:
            return None
        now = time.time_ns() // 1000
        # A clock that was set back would make all new samples old.
        self._sampled[uuid] = min(self._sampled.get(uuid, now), now)
        try:
            samples = _samples(uuid, self._sampled[uuid])
        except pynvml.NVMLError as error:
            log.debug("a card does not report its processes' utilization", card=uuid, error=error)
            return None
        percents = dict.fromkeys(workers, 0)
        for pid, at, percent in samples:
            percents[pid] = max(percent, percents.get(pid, 0))
            self._sampled[uuid] = max(at, self._sampled[uuid])
        return {pid: ProcessLoad(one, workers.get(pid, 0)) for pid, one in percents.items()}

    def _start(self) -> None:
        """Start NVML, or start it again."""
        self._ready = False
        self._stop()
        load_driver(self._root, self._nodes_root)
        pynvml.nvmlInit()
        self._open = self._ready = True
        self._starts += 1

    def _stop(self) -> None:
        """End NVML's session, if there is one. NVML counts sessions and looks for cards and its
        driver at the start of the first, so one that is left open would make later restarts do
        nothing."""
        if self._open:
            self._keep_untold()
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _minors(self, uuids: Collection[str]) -> dict[str, int | None]:
        if not self._ready:
            raise CardsUnknown("NVML does not answer; is the driver installed on this node?")
        return {uuid: _minor(uuid) for uuid in uuids}

    def _register(self) -> tuple[int, Any]:
        self._events = _register()
        return self._starts, self._events

    def _next(self, start: int, events: Any) -> list[tuple[str, int]]:
        if self._untold:
            untold, self._untold = self._untold, []
            return untold
        # The event set became invalid when NVML was restarted.
        return _next(events) if start == self._starts else []

    def _keep_untold(self) -> None:
        """Keep the faults that the event set still has: NVML reports a fault once, and the set
        becomes invalid when NVML is restarted."""
        events, self._events = self._events, None
        try:
            while events is not None and (found := _next(events)):
                self._untold += found
        except pynvml.NVMLError as error:
            log.warning("faults may have been missed", error=error)


class _RestartTimes:
    """Decides when to restart NVML because a card is missing: at once, and then ever less often."""

    def __init__(self) -> None:
        self._pause = self._left = 0

    def is_due(self, missing: bool) -> bool:
        """Whether to restart NVML at this read. To be called at each read. `missing`: a card is
        missing."""
        if not missing:
            self._pause = self._left = 0
        elif self._left:
            self._left -= 1
        else:
            self._pause = min(2 * self._pause or RESTART_FIRST, RESTART_MOST)
            self._left = self._pause - 1
            return True
        return False


def _minor(uuid: str) -> int | None:
    try:
        handle = mig.card_of(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    except pynvml.NVMLError as error:
        log.warning("a card does not report its device node", card=uuid, error=error)
        return None


def _computing(uuid: str) -> list[Any] | None:
    """The processes that compute on the card; None if it does not report them."""
    try:
        return _processes("Compute", uuid)
    except pynvml.NVMLError as error:
        log.debug("a card does not report its processes", card=uuid, error=error)
        return None


def _others(uuid: str) -> list[Any]:
    """The processes on the card that render, or that compute by MPS."""
    found: list[Any] = []
    for kind in ("Graphics", "MPSCompute"):
        with suppress(pynvml.NVMLError):  # a card, or a driver, without such processes
            found += _processes(kind, uuid)
    return found


def _processes(kind: str, uuid: str) -> list[Any]:
    """The processes in one of NVML's lists. Drivers before 510 have no third version of the
    function, but a second one, which returns the same. Of the list of MPS, that of 450 has only a
    first one, which pynvml does not call: its processes are not seen."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    try:
        return list(getattr(pynvml, f"{name}_v3")(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return list(getattr(pynvml, f"{name}_v2")(handle))


def _samples(uuid: str, after: int) -> list[tuple[int, int, int]]:
    """PID, time (microseconds since 1970) and percent of the card's time of each sample that is
    later than `after`."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        found = pynvml.nvmlDeviceGetProcessUtilization(handle, after)
    except pynvml.NVMLError_NotFound:
        return []
    samples = [(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found]
    return [one for one in samples if one[1] > after]


def _free_bytes(uuid: str) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).free)


def _register() -> Any:
    """A new event set, registered for the XIDs of every card that reports them."""
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            log.warning("a card does not support fault events", index=index, error=error)
    return events


def _next(events: Any) -> list[tuple[str, int]]:
    """The next fault, as UUID and XID, once for the card or for each instance that it concerns;
    empty if there is none."""
    try:
        event = pynvml.nvmlEventSetWait_v2(events, 0)
    except pynvml.NVMLError_Timeout:
        return []
    card, xid = text(pynvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)
    if event.gpuInstanceId == mig.NOBODYS:
        return [(card, xid)]
    ids = event.gpuInstanceId, event.computeInstanceId
    try:
        found = [
            text(pynvml.nvmlDeviceGetUUID(one))
            for one in mig.handles(event.device)
            if mig.place_of(one, card).has(*ids)
        ]
    except pynvml.NVMLError as error:
        # NVML reports a fault once: rather blame the whole card than lose it.
        log.warning("the instance of a fault is not known", card=card, xid=xid, error=error)
        found = []
    return [(uuid, xid) for uuid in found or [card]]
