"""A node agent of a later version beside containers that run with the shim of this one."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mizar_core.carve import CardLimit
from mizar_nodeagent.errors import RegionUnserved
from mizar_nodeagent.regions import layout, limits_file, usage_file, usage_snapshot
from mizar_nodeagent.time_slicing.time_slicer import Container, TimeSlicer

from .conftest import shim_env
from .shell import OUT_OF_MEMORY, SUCCESS, SYSTEM_NOT_READY, Shell
from .slot import MIB, card_uuid

LATER = layout.VERSION + 1
WHO = limits_file.ContainerIdentity("team-a", "pod", "uid", "main", "slot")


class Deployed:
    """A container's two files, which only the node agent's own code writes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.limits, self.usage = folder / "limits", folder / "usage"
        limits_file.create_empty(self.limits)
        usage_file.create(self.usage)
        self.env = shim_env(folder)

    def limit(self, memory: int) -> None:
        limits = [CardLimit(card_uuid(0), memory, 5000, "Hard", "Hard")]
        limits_file.write(self.limits, WHO, limits, {})

    def before_a_start(self) -> None:
        """What PreStartContainer does to the files of a container that starts again."""
        usage_file.repair_header(self.usage, limits_file.version(self.limits))

    def versions(self) -> tuple[int, int]:
        """The versions in the files: the limits', the usage's."""
        limits, usage = self.limits.read_bytes(), self.usage.read_bytes()
        return int.from_bytes(limits[8:12], "little"), int.from_bytes(usage[8:12], "little")

    def has(self, memory: int) -> None:
        """Assert that a program that starts in the container has this limit."""
        with Shell(self.env) as shell:
            assert shell.free_and_total()[1] == memory
            assert shell.alloc(memory + MIB) == OUT_OF_MEMORY


@pytest.fixture
def slot(tmp_path: Path, layout: dict[str, Any]) -> Deployed:
    """64 MiB and half of the time of card 0, by an agent of the shim's version."""
    made = Deployed(tmp_path / "slot")
    made.limit(64 * MIB)
    return made


def upgrade(monkeypatch: pytest.MonkeyPatch, *served: int) -> None:
    """From here on the agent is of the next version, which serves these files as well."""
    monkeypatch.setattr(layout, "VERSION", LATER)
    monkeypatch.setattr(layout, "SERVED", frozenset({LATER, *served}))


def test_a_container_that_runs_through_an_agent_upgrade_still_gets_a_changed_memory_limit(
    slot: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Shell(slot.env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        upgrade(monkeypatch, layout.VERSION)
        assert shell.free_and_total()[1] == 64 * MIB
        slot.limit(48 * MIB)
        assert shell.free_and_total()[1] == 48 * MIB
        assert shell.alloc(10 * MIB) == OUT_OF_MEMORY
        assert usage_snapshot.card_usage(slot.usage, 1)[0].bytes >= 40 * MIB
    slot.has(48 * MIB)


def test_a_container_that_starts_again_after_an_upgrade_has_its_files_version(
    slot: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(monkeypatch, layout.VERSION)
    with slot.usage.open("r+b") as file:  # a guess of the tenant's
        file.seek(8)
        file.write(LATER.to_bytes(4, "little"))
    slot.before_a_start()
    slot.limit(32 * MIB)
    assert slot.versions() == (LATER - 1, LATER - 1)
    slot.has(32 * MIB)


def test_a_container_that_runs_through_an_agent_upgrade_still_gets_the_agents_heartbeat(
    slot: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it keeps its share of the card's time; test_time_slicer.py tests the windows."""
    clock = count(10**15, 10**8)
    upgrade(monkeypatch, layout.VERSION)
    slicer = TimeSlicer(
        lambda: [Container("slot", slot.limits, slot.usage)], clock.__next__, lambda: None
    )
    try:
        before = limits_file.read(slot.limits).live[0].beat
        for _ in range(3):
            slicer.round()
    finally:
        slicer.close()
    assert limits_file.read(slot.limits).live[0].beat == before + 3


def test_an_older_shim_takes_no_files_of_a_later_version(
    tmp_path: Path, slot: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have files that are not of its shim's version: then there is no CUDA, rather
    than no limits."""
    upgrade(monkeypatch)
    other = Deployed(tmp_path / "other")
    other.limit(64 * MIB)
    assert other.versions() == (LATER, LATER)
    with Shell(other.env, start=False) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        shell.send("exit")
        assert "has a different version from this shim" in shell.errors()


def test_files_that_an_agent_does_not_serve_stay_as_they_are(
    slot: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is two versions ahead, or was rolled back: the container keeps the limits that it
    has."""
    with Shell(slot.env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        upgrade(monkeypatch)
        before = slot.limits.read_bytes(), slot.versions()
        for attempt in (
            lambda: slot.limit(1 * MIB),
            lambda: limits_file.stop_cards(slot.limits),
            slot.before_a_start,
        ):
            with pytest.raises(RegionUnserved, match="this node agent serves version 2: "):
                attempt()
        assert (slot.limits.read_bytes(), slot.versions()) == before
        assert shell.free_and_total()[1] == 64 * MIB
        assert shell.alloc(30 * MIB) == OUT_OF_MEMORY
    slot.has(64 * MIB)


def test_limits_that_an_agent_before_made_without_a_version_get_its_own(tmp_path: Path) -> None:
    """They consist of zeros until the container starts."""
    path = tmp_path / "limits"
    path.write_bytes(bytes(layout.LIMITS_SIZE))
    assert limits_file.version(path) == layout.VERSION


def test_a_version_that_is_damaged_is_mended(slot: Deployed) -> None:
    with slot.limits.open("r+b") as file:
        file.seek(8)
        file.write(LATER.to_bytes(4, "little"))
    slot.limit(64 * MIB)
    assert slot.versions() == (LATER - 1, LATER - 1)
    slot.has(64 * MIB)


# ---- what may change under one version ----

FROZEN = Path(__file__).parent / f"regions-{layout.VERSION}.json"


def overlap(layout: dict[str, Any], name: str, place: list[int]) -> bool:
    """Whether a field of that name and place would have bytes of one that the layout has."""
    owner, (offset, size) = name.split(".")[0], place
    return any(
        at < offset + size and offset < at + length
        for other, (at, length) in layout["fields"].items()
        if other.split(".")[0] == owner
    )


def broken(frozen: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The fields that changed, and the new fields that are not in reserved bytes."""
    kinds = ("magic", "constants", "sizes", "fields")
    wrong = {
        name for kind in kinds for name, one in frozen[kind].items() if now[kind].get(name) != one
    }
    new = now["fields"].keys() - frozen["fields"].keys()
    return sorted(wrong | {name for name in new if overlap(frozen, name, now["fields"][name])})


def test_the_layout_has_only_grown_into_what_was_reserved(layout: dict[str, Any]) -> None:
    assert broken(json.loads(FROZEN.read_text()), layout) == [], "see shim/README.md"


@pytest.mark.parametrize(
    ("field", "place", "wrong"),
    [
        ("mizar_limits_live.news", [36, 4], []),
        ("mizar_limits_live.news", [32, 8], ["mizar_limits_live.news"]),
        ("mizar_limits_live.window", [28, 8], ["mizar_limits_live.window"]),
        ("mizar_limits_live.news", [40, 16], ["mizar_limits_live.news"]),
        ("mizar_compute.load", None, ["mizar_compute.load"]),
    ],
)
def test_what_is_no_growth_is_noticed(
    field: str, place: list[int] | None, wrong: list[str]
) -> None:
    frozen = json.loads(FROZEN.read_text())
    now = json.loads(FROZEN.read_text())
    now["fields"].pop(field, None)
    now["fields"] |= {} if place is None else {field: place}
    assert broken(frozen, now) == wrong


def test_the_version_before_is_served_as_well() -> None:
    assert layout.VERSION in layout.SERVED
    assert layout.VERSION == 1 or layout.VERSION - 1 in layout.SERVED
