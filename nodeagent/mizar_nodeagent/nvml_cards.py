"""What NVML tells of each card and of each MIG device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

import pynvml

from mizar_kube.logs import get_logger
from mizar_nodeagent import mig
from mizar_nodeagent.card_health import Readings
from mizar_nodeagent.cards import Card

log = get_logger(__name__)

T = TypeVar("T")

NUMA_WORDS: Final = 16
"""Words of 64 bits: as many NUMA nodes as Linux has."""


def all_cards() -> list[Card]:
    """The cards that NVML lists, and their MIG devices; `unread` are those of which it tells no
    more than the UUID at the moment. A card that is lost is left out."""
    found: list[Card] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.extend(_read(pynvml.nvmlDeviceGetHandleByIndex(index), _card_and_instances))
        except pynvml.NVMLError as error:
            log.warning("a card does not answer", index=index, error=error)
    return found


def _card_and_instances(handle: Any) -> list[Card]:
    """The card alone, unread, where one of its instances is neither there nor known to be gone."""
    card = _whole(handle)
    return [card, *_instances(handle, card)]


def _read(handle: Any, read: Callable[[Any], list[Card]]) -> list[Card]:
    """What `read` tells of a card or an instance. Raises NVMLError where it is lost, or does not
    even tell its UUID."""
    try:
        return read(handle)
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError as error:
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        log.warning("a card does not answer", card=uuid, error=error)
        return [Card(uuid, 0, "", unread=str(error))]


def _whole(handle: Any) -> Card:
    return replace(
        _card(handle),
        numa=_numa(handle),
        divided=mig.is_divided(handle),
        readings=_readings(handle),
    )


def _instances(handle: Any, card: Card) -> Iterator[Card]:
    """A card's MIG devices, with its health, as they tell none. NVLinks and utilization are the
    card's alone."""

    def instance(one: Any) -> list[Card]:
        found = replace(
            _card(one),
            numa=card.numa,
            readings=replace(
                card.readings, links=(), used_bytes=int(_memory(one).used), busy_percent=None
            ),
            instance=mig.place_of(one, card.uuid),
        )
        return [found]

    for one in mig.handles(handle):
        yield from _read(one, instance)


def _card(handle: Any) -> Card:
    return Card(
        uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(_memory(handle).total),
        model=text(pynvml.nvmlDeviceGetName(handle)),
        driver=text(pynvml.nvmlSystemGetDriverVersion()),
    )


def _numa(handle: Any) -> tuple[int, ...]:
    """The NUMA nodes that the card is near to; none where NVML does not tell."""
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = _told(pynvml.nvmlDeviceGetMemoryAffinity, handle, NUMA_WORDS, scope) or ()
    bits = enumerate(f"{int(word):064b}"[::-1] for word in words)
    return tuple(64 * at + bit for at, word in bits for bit, one in enumerate(word) if one == "1")


def _memory(handle: Any) -> Any:
    """Its `total` and `used` bytes, integers."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _readings(handle: Any) -> Readings:
    remapped = _told(pynvml.nvmlDeviceGetRemappedRows, handle)
    rates = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return Readings(
        celsius=_told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        slowdown=_told(
            pynvml.nvmlDeviceGetTemperatureThreshold,
            handle,
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        remap_failed=bool(remapped and remapped[3]),
        links=tuple(_links(handle)),
        used_bytes=int(_memory(handle).used),
        busy_percent=None if rates is None else int(rates.gpu),
    )


def _links(handle: Any) -> Iterator[bool]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _told(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            return
        yield bool(state)


def _told(ask: Callable[..., T], handle: Any, *what: Any) -> T | None:
    """NVML's answer; None where the card does not tell this. Raises NVMLError where the card is
    lost."""
    try:
        return ask(handle, *what)
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """As NVML's bindings of either age give it."""
    return value.decode() if isinstance(value, bytes) else value
