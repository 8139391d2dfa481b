"""NVIDIA's DRA driver in a simulation: it names cards by the numbers that they had when it last
looked, and the scheduler allocates them by these names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from mizar_core.names import DRA_DRIVER, PHYSICAL_RESOURCE
from mizar_kube.client import Listing
from mizar_kube.errors import Unavailable
from mizar_kube.kinds import Kind, Object, Ref
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards, ResourceSlice, trim
from mizar_nodeagent.kubelet.claims import Claim, Claims, DraDevice
from mizar_nodeagent.pods import Key
from simulation.node.api import Api
from simulation.node.cards import Cards

POOL = "node-1"
CLAIM = "-cards"
"""The end of a claim's name, after the name of its pod."""


class Driver:
    """The driver of one node. `devices`: the card of each device in the ResourceSlice that the API
    server has. `claims`: names of the devices of each pod's claim. `saved`: the file in which the
    agent keeps the cards of claims."""

    def __init__(self, cards: Cards, saved: Path) -> None:
        self._cards = cards
        self._saved = saved
        self.devices: dict[str, str] = {}
        self.claims: dict[Key, tuple[str, ...]] = {}
        self.look(())

    def look(self, pods: Iterable[Key]) -> None:
        """Name the cards that are there, and publish them, unless the agent has yet to save the
        cards of a claim: under new names, nothing would tell which they were. `pods`: those that
        exist."""
        self._forget_all_but(pods)
        if self.claims and not self.claims.keys() <= self._known():
            return
        self.devices = {f"gpu-{number}": uuid for uuid, number in self._cards.minor.items()}

    def _known(self) -> set[Key]:
        try:
            cards = json.loads(self._saved.read_bytes())["cards"]
        except (OSError, ValueError):
            return set()
        devices = (one["device"] for one in cards)
        return {(one["namespace"], one["claim"].removesuffix(CLAIM)) for one in devices}

    def free(self, pods: Iterable[Key]) -> list[str]:
        """The names that no claim of these pods has, sorted."""
        self._forget_all_but(pods)
        taken = {one for names in self.claims.values() for one in names}
        return sorted(self.devices.keys() - taken)

    def _forget_all_but(self, pods: Iterable[Key]) -> None:
        known = set(pods)
        self.claims = {key: names for key, names in self.claims.items() if key in known}

    def slice(self) -> Object:
        """The ResourceSlice."""
        return {
            "metadata": {"name": "slice"},
            "spec": {
                "driver": DRA_DRIVER,
                "pool": {"name": POOL, "generation": 1},
                "devices": [
                    {
                        "name": name,
                        "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
                    }
                    for name, uuid in sorted(self.devices.items())
                ],
            },
        }

    def named(self, claims: Claims) -> tuple[Claims, dict[Claim, tuple[DraDevice, ...]]]:
        """The claims without those on cards, and the devices of the latter, as the kubelet knows
        them."""
        whole = [one for one in claims.all if one.resource == PHYSICAL_RESOURCE]
        devices = {
            one: tuple(
                DraDevice(one.namespace, f"{one.pod}{CLAIM}", POOL, name)
                for name in self.claims[one.namespace, one.pod]
            )
            for one in whole
        }
        others = tuple(one for one in claims.all if one.resource != PHYSICAL_RESOURCE)
        return replace(claims, all=others), devices


class SliceApi:
    """Stands in for KubeClient to list slices and read claims. Its answers come late, and it fails
    while the API server is away."""

    def __init__(self, api: Api, driver: Driver, random: Random, lag: float) -> None:
        self._api = api
        self._driver = driver
        self._random = random
        self._lag = lag

    async def list(self, kind: Kind, *, field_selector: str, timeout: float) -> Listing:
        """As KubeClient.list, for slices."""
        await asyncio.sleep(min(timeout, self._lag * self._random.random()))
        if self._api.is_away:
            raise Unavailable("the API server is away (simulated)")
        return Listing([self._driver.slice()], "1")

    async def get(self, ref: Ref, *, timeout: float) -> Object:
        """As KubeClient.get, for claims, none of which is a monitor's."""
        await asyncio.sleep(min(timeout, self._lag * self._random.random()))
        if self._api.is_away:
            raise Unavailable("the API server is away (simulated)")
        return {"metadata": {"namespace": ref.namespace, "name": ref.name}}


class SliceWatch:
    """Stands in for Informer[ResourceSlice], with the parts that the agent uses."""

    def __init__(self, api: Api, driver: Driver, random: Random, lag: float) -> None:
        self.synced = asyncio.Event()
        self._api = api
        self._driver = driver
        self._random = random
        self._lag = lag
        self._known: ResourceSlice | None = None
        self._changed: Callable[[object, object], None] = lambda old, new: None

    def on_change(self, listener: Callable[[object, object], None]) -> None:
        """As Informer.on_change."""
        self._changed = listener

    def values(self) -> list[ResourceSlice]:
        """As Informer.values."""
        return [] if self._known is None else [self._known]

    def problem(self) -> str | None:
        """As Informer.problem."""
        return None

    async def run(self) -> None:
        """Follow the driver's slice for ever."""
        while True:
            await asyncio.sleep(self._lag * (0.5 + self._random.random()))
            if self._api.is_away:
                continue
            before, self._known = self._known, trim(self._driver.slice())
            self.synced.set()
            if before != self._known:
                self._changed(before, self._known)


async def with_cards(
    claims: Claims, devices: dict[Claim, tuple[DraDevice, ...]], dra: AllocatedDraCards
) -> Claims:
    """The claims, and those on cards, as PodResources makes them of the kubelet's answer."""
    cards = await dra.cards_of([one for names in devices.values() for one in names])
    more = tuple(
        replace(claim, ids=frozenset(one.id(cards[one]) for one in names))
        for claim, names in devices.items()
    )
    return Claims((*claims.all, *more), claims.asked_at, cards)
