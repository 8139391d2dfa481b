"""MIG: the sizes into which a card is divided, and the names of instances on the node."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.machine import Card, Machine

MIB = 1 << 20
SLICES = 7
"""Slices of a card's compute, which are divided among its instances."""
CAPS = "nvidia-caps"
MINORS = Path("proc/driver/nvidia-caps/mig-minors")
"""Path, below the node's root, where the driver lists the capabilities' device numbers."""
_NAMESPACE = uuid.UUID("3f0b6e8f-61c0-5a0b-a4a6-0c6b5b5c3f0e")
_PROFILE = re.compile(r"([1-7])g\.([1-9][0-9]{0,2})gb")
_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8
_PER_CARD = _GPU_INSTANCES * (1 + _COMPUTE_INSTANCES)
_FIRST = 3  # numbers 1 and 2 are for configuring and monitoring MIG


@dataclass(frozen=True)
class Profile:
    """A size of instances: slices of a card's compute, and memory in GB, such as 2g.10gb."""

    name: str
    slices: int
    gigabytes: int

    @classmethod
    def parse(cls, name: str) -> Profile:
        """Raises ValueError if the text is no profile's name."""
        if not (found := _PROFILE.fullmatch(name)):
            raise ValueError(f"'{name}' is no MIG profile such as 1g.5gb")
        return cls(name, int(found[1]), int(found[2]))

    @property
    def memory_bytes(self) -> int:
        """The driver reserves a twentieth: of 5 GB, 4864 MiB are left."""
        return self.gigabytes * 1024 * MIB * 19 // 20

    def sms(self, card: int) -> int:
        """SMs of an instance on a card with that many SMs. They are assigned in pairs."""
        return card // SLICES // 2 * 2 * self.slices


def capabilities(minor: int, gpu_instance: int, compute_instance: int) -> tuple[int, int]:
    """Numbers of the two device nodes that give access to an instance. `minor`: that of the
    card."""
    gpu = _FIRST + minor * _PER_CARD + gpu_instance * (1 + _COMPUTE_INSTANCES)
    return gpu, gpu + 1 + compute_instance


def minors_file(cards: int) -> str:
    """The content of the driver's mig-minors file for that many cards."""
    lines = ["config 1", "monitor 2"]
    for card in range(cards):
        for gpu in range(_GPU_INSTANCES):
            lines.append(f"gpu{card}/gi{gpu}/access {capabilities(card, gpu, 0)[0]}")
            lines += [
                f"gpu{card}/gi{gpu}/ci{compute}/access {capabilities(card, gpu, compute)[1]}"
                for compute in range(_COMPUTE_INSTANCES)
            ]
    return "\n".join(lines) + "\n"


def divide(machine: Machine, card_uuid: str, sizes: Sequence[Profile]) -> list[str]:
    """Divide a card: see Machine.divide."""
    card = machine.card(card_uuid)
    own = [one for one in machine.instances if one.parent == card_uuid]
    if busy := [one.uuid for one in (card, *own) if one.processes]:
        raise ValueError(f"{busy[0]} is in use")
    if sum(one.slices for one in sizes) > SLICES:
        raise ValueError(f"a card has {SLICES} slices of compute")
    if sum(one.memory_bytes for one in sizes) > card.total:
        raise ValueError(f"{card.uuid} has {card.total // MIB} MiB of memory")
    for one in own:
        machine.state.set_number(one.index, "lost", 1)
    machine.state.set_number(card.index, "divided", int(bool(sizes)))
    return [_add(machine, card, number, size) for number, size in enumerate(sizes, 1)]


def _add(machine: Machine, card: Card, gpu_instance: int, profile: Profile) -> str:
    """Add an instance. Its UUID is the same for the same card, position and size."""
    state, index = machine.state, machine.state.spare()
    made = f"MIG-{uuid.uuid5(_NAMESPACE, f'{card.uuid}/{gpu_instance}/{profile.name}')}"
    for figure in machine.FIGURES:
        state.set_number(index, figure, state.number(card.index, figure))
    state.set_text(index, "uuid", made)
    state.set_text(index, "name", f"{card.name} MIG {profile.name}")
    state.set_text(index, "profile", profile.name)
    for field, value in {
        "sm_count": profile.sms(state.number(card.index, "sm_count")),
        "memory_bytes": profile.memory_bytes,
        "slices": profile.slices,
        "parent": card.index + 1,
        "gpu_instance": gpu_instance,
        "compute_instance": 0,
        "last_xid": 0,
    }.items():
        state.set_number(index, field, value)
    place(machine, index)
    state.set_number(index, "lost", 0)
    return made


def place(machine: Machine, index: int) -> None:
    """Set an instance's device nodes, which follow from its card's minor number."""
    state = machine.state
    numbers = capabilities(
        state.number(machine.parent(index) - 1, "minor"),
        state.number(index, "gpu_instance"),
        state.number(index, "compute_instance"),
    )
    for what, number in zip(("gpu", "compute"), numbers, strict=True):
        state.set_number(index, f"{what}_capability", number)
    machine.make_nodes(capability_nodes(numbers))


def capability_nodes(numbers: Iterable[int]) -> list[str]:
    """Names of the device nodes with these numbers."""
    return [f"{CAPS}/nvidia-cap{number}" for number in numbers]
