"""Reads the properties and health of each card and MIG device from NVML."""

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
"""Number of 64-bit words in NVML's mask of NUMA nodes: enough for the 1,024 nodes that Linux has at
most."""


def all_cards() -> list[Card]:
    """The cards that NVML lists, and their MIG devices. A card of which NVML now reports only the
    UUID has `unread` set. A card that is lost is left out."""
    found: list[Card] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.extend(_read(pynvml.nvmlDeviceGetHandleByIndex(index), _card_and_instances))
        except pynvml.NVMLError as error:
            log.warning("a card does not answer", index=index, error=error)
    return found


def _card_and_instances(handle: Any) -> list[Card]:
    """The card and its instances. Raises NVMLError if NVML does not say whether an instance exists,
    so that the card counts as unread."""
    card = _whole(handle)
    return [card, *_instances(handle, card)]


def _read(handle: Any, read: Callable[[Any], list[Card]]) -> list[Card]:
    """The result of `read` for a card or an instance; if that fails, one unread card. Raises
    NVMLError if the card is lost, or does not even report its UUID."""
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
    """A card's MIG devices. They report no health, so they have their card's, except for NVLinks
    and utilization, which are the card's alone."""

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
    """The NUMA nodes near the card; none if NVML does not report them."""
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = _told(pynvml.nvmlDeviceGetMemoryAffinity, handle, NUMA_WORDS, scope) or ()
    bits = enumerate(f"{int(word):064b}"[::-1] for word in words)
    return tuple(64 * at + bit for at, word in bits for bit, one in enumerate(word) if one == "1")


def _memory(handle: Any) -> Any:
    """The card's memory: `total` and `used`, in bytes."""
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
    """NVML's answer to `ask`; None if the card does not report this. Raises NVMLError if the card
    is lost."""
    try:
        return ask(handle, *what)
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """A text of NVML as str: older versions of its bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
