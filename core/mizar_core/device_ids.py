"""The grammar of device IDs, and the annotations that carry them to the runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

from mizar_core.errors import DeviceIDRefused
from mizar_core.names import MAIN_CONTAINER, is_dns_label, is_dns_subdomain

_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")
_NOT_SUCH = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What the reading of a text raises that is no value of an annotation; RecursionError if its JSON
is nested too deeply."""


class Shape(Protocol):
    """Anything with a number of devices over a number of cards: a profile, a carve."""

    @property
    def devices(self) -> int: ...

    @property
    def cards(self) -> int: ...


class DeviceID(NamedTuple):
    """A virtual device: `{namespace}/{shadow}-{index}`, as the kubelet sees it.

    A tuple, since each plan of a node hashes and sorts all of its devices: a dataclass takes three
    times as long.
    """

    namespace: str
    shadow: str
    index: int  # type: ignore[assignment]  # in place of tuple.index, which is not used

    def __str__(self) -> str:
        return f"{self.namespace}/{self.short}"

    @property
    def short(self) -> str:
        """`{shadow}-{index}`: the ID without its namespace, as the annotation has it."""
        return f"{self.shadow}-{self.index}"

    @classmethod
    @lru_cache(maxsize=8192)  # each plan of a node reads all IDs that are held, again and again
    def parse(cls, text: str) -> DeviceID:
        """The ID in a text `{namespace}/{shadow}-{index}`. Raises DeviceIDRefused for any other
        text."""
        namespace, _, rest = text.partition("/")
        shadow, _, index = rest.rpartition("-")
        if not (is_dns_label(namespace) and is_dns_subdomain(shadow) and _INDEX.fullmatch(index)):
            raise DeviceIDRefused(
                f"'{text}' is not a virtual device: expected namespace/shadow-pod-index"
            )
        return cls(namespace, shadow, int(index))


def device_ids(namespace: str, shadow: str, devices: int) -> tuple[DeviceID, ...]:
    """All devices of a shadow pod, in order."""
    return tuple(DeviceID(namespace, shadow, index) for index in range(devices))


def card_of(index: int, shape: Shape) -> int:
    """The number (0, 1, ...) of the shadow pod's card that a device lies on. Raises DeviceIDRefused
    for a device that the shape does not have."""
    if not 0 <= index < shape.devices:
        raise DeviceIDRefused(f"device {index} does not exist: there are {shape.devices}")
    return index // (shape.devices // shape.cards)


def devices_from_value(ids: Iterable[DeviceID]) -> str:
    """The value of `container_devices_from`: the devices that a container gets, per shadow pod.

    One device each: `{"_/shadow-2-x7k4q/main":{"*":["shadow-2-x7k4q-0"]}}`.
    """
    relation: dict[str, dict[str, list[str]]] = {}
    for device in sorted(ids):
        owner = relation.setdefault(f"_/{device.shadow}/{MAIN_CONTAINER}", {"*": []})
        owner["*"].append(device.short)
    return json.dumps(relation, separators=(",", ":"))


def devices_of_value(text: str) -> frozenset[str]:
    """The devices in a value of `container_devices_from`, without their namespaces. Raises
    DeviceIDRefused if the text is not such a value."""
    try:
        return _joined(owner["*"] for owner in json.loads(text).values())
    except _NOT_SUCH as error:
        raise DeviceIDRefused(f"'{text}' names no virtual devices: {error}") from error


def cards_of_value(text: str) -> frozenset[str]:
    """The cards' UUIDs in a value of `container_devices_ids`. Raises DeviceIDRefused if the text is
    not such a value."""
    try:
        return _joined(json.loads(text).values())
    except _NOT_SUCH as error:
        raise DeviceIDRefused(f"'{text}' names no cards: {error}") from error


def _joined(lists: Iterable[object]) -> frozenset[str]:
    """All items of the lists. Raises TypeError if one of them is not a list of strings."""
    found: set[str] = set()
    for one in lists:
        if not (isinstance(one, list) and all(isinstance(item, str) for item in one)):
            raise TypeError(f"{one} is no list of names")
        found.update(one)
    return frozenset(found)
