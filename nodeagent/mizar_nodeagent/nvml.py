"""The cards as NVML tells of them. Its calls may block for long: they run in a thread of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pynvml

from mizar_kube.logs import get_logger
from mizar_nodeagent import context_probe
from mizar_nodeagent.cards import CardFacts
from mizar_nodeagent.errors import CardsUnknown

log = get_logger(__name__)

T = TypeVar("T")

LOOK_S = 0.5
RETRY_S = 5.0
# Reads between two starts of NVML while a card is missing.
RESTART_EVERY = 3


class Nvml:
    """A CardSource over libnvidia-ml.so.1. Nothing is called before the first `read`.

    One thread makes all calls, so that NVML is never shut down under a call that waits.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._ever: set[str] = set()
        self._misses = 0
        self._ready = False
        self._life = 0
        self._started = asyncio.Event()

    async def read(self) -> Mapping[str, CardFacts]:
        """The cards that answer now. Raises CardsUnknown; the next call starts afresh."""
        try:
            cards = await self._run(self._read)
        except pynvml.NVMLError as error:
            self._ready = False
            raise CardsUnknown(f"NVML: {error}; is the driver installed on this node?") from error
        self._started.set()
        return cards

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """The processes with memory on these cards, as far as their cards answer."""
        if not self._ready:
            return {}
        found = await self._run(lambda: {uuid: _workers(uuid) for uuid in uuids})
        return {uuid: workers for uuid, workers in found.items() if workers is not None}

    async def context_bytes(self, uuid: str) -> int:
        """By a context that is made there for a moment."""
        return await context_probe.measure(self.workers, uuid)

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        """Tell each XID event, for ever; registers anew when NVML was started anew."""
        said = ""
        while True:
            await self._started.wait()
            try:
                await self._follow(tell)
            except pynvml.NVMLError as error:
                if said != str(error):
                    log.warning("NVML tells no faults of cards; asking again", error=error)
                said = str(error)
                await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _follow(self, tell: Callable[[str, int], None]) -> None:
        life, events = await self._run(self._register)
        while life == self._life:
            found = await self._run(lambda: self._next(life, events))
            if found is not None:
                tell(*found)
            else:
                await asyncio.sleep(LOOK_S)  # not in NVML, where all others would wait behind it

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _read(self) -> dict[str, CardFacts]:
        """NVML keeps the list of cards that it made when it was started, so while one is missing
        it is started anew: at once, and then now and then."""
        if not self._ready:
            self._start()
        cards = {card.uuid: card for card in _all_cards()}
        if self._ever - cards.keys():
            if self._misses % RESTART_EVERY == 0:
                pynvml.nvmlShutdown()
                self._start()
                cards = {card.uuid: card for card in _all_cards()}
            self._misses += 1
        else:
            self._misses = 0
        self._ever.update(cards)
        return cards

    def _start(self) -> None:
        self._ready = False
        pynvml.nvmlInit()
        self._ready = True
        self._life += 1

    def _register(self) -> tuple[int, Any]:
        return self._life, _register()

    def _next(self, life: int, events: Any) -> tuple[str, int] | None:
        # The set died with the NVML that it was made in.
        return _next(events) if life == self._life else None


def _all_cards() -> list[CardFacts]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(_card(pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError as error:
            log.warning("a card does not answer", index=index, error=error)
    return found


def _card(handle: Any) -> CardFacts:
    return CardFacts(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
    )


def _workers(uuid: str) -> dict[int, int] | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError as error:
        log.debug("a card does not tell who works on it", card=uuid, error=error)
        return None
    # A driver that cannot tell the bytes says None.
    return {int(one.pid): int(one.usedGpuMemory or 0) for one in found}


def _register() -> Any:
    """An event set with the XIDs of every card that can tell them."""
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            log.warning("a card tells no faults", index=index, error=error)
    return events


def _next(events: Any) -> tuple[str, int] | None:
    try:
        event = pynvml.nvmlEventSetWait_v2(events, 0)
    except pynvml.NVMLError_Timeout:
        return None
    return _text(pynvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
