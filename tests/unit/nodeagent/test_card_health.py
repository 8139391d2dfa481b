"""Which signs make a card Unhealthy, and when it is well again."""

import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from mizar_nodeagent import card_health
from mizar_nodeagent.card_health import (
    NOTED_XIDS,
    PROGRAM_XIDS,
    REPAIRED,
    SIGNS,
    CardHealth,
    Readings,
)
from mizar_nodeagent.cards import CardInventory
from unit.nodeagent.makers import CARD, card

WELL = Readings(celsius=40, slowdown=92, links=(True, True))
HOT = replace(WELL, celsius=92)
WARM = replace(WELL, celsius=85)
RUNBOOK = Path(__file__).parents[3] / "docs" / "runbooks" / "failing-card.md"


class Course:
    """A card's health as time passes."""

    def __init__(self) -> None:
        self.health = CardHealth()
        self.now = 0.0
        self.health.read(WELL, self.now)

    def pass_by(self, seconds: float, readings: Readings) -> list[str]:
        """The card's problems after its state has lasted for a while."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 2.0)
            self.health.read(readings, self.now)
        return [one.split(":")[0] for one in self.health.problems]


@pytest.fixture
def course() -> Course:
    return Course()


class TestTemperature:
    BAD: ClassVar = ["it is so hot that it slows down"]

    def test_a_peak_is_no_problem(self, course: Course) -> None:
        assert course.pass_by(10, HOT) == []
        assert course.pass_by(2, WELL) == []
        assert course.pass_by(10, HOT) == []

    def test_heat_that_lasts_is_one_until_it_has_been_cool_for_long(self, course: Course) -> None:
        assert course.pass_by(12, HOT) == self.BAD
        assert course.pass_by(60, WELL) == self.BAD
        assert course.pass_by(2, WELL) == []

    def test_a_little_cooler_changes_nothing(self, course: Course) -> None:
        assert course.pass_by(3600, WARM) == []
        course.pass_by(12, HOT)
        assert course.pass_by(3600, WARM) == self.BAD

    def test_two_hot_moments_are_no_heat_that_lasts(self, course: Course) -> None:
        course.pass_by(2, HOT)
        course.pass_by(3600, WARM)
        assert course.pass_by(2, HOT) == []

    def test_it_does_not_flap(self, course: Course) -> None:
        course.pass_by(12, HOT)
        for _ in range(10):
            assert course.pass_by(30, WELL) == self.BAD
            assert course.pass_by(2, HOT) == self.BAD

    def test_a_card_that_does_not_tell_is_well(self, course: Course) -> None:
        assert course.pass_by(600, replace(HOT, slowdown=None)) == []
        assert course.pass_by(600, replace(HOT, celsius=None)) == []


def test_a_link_that_was_up_and_is_down(course: Course) -> None:
    assert course.pass_by(12, replace(WELL, links=(True, False))) == ["one of its NVLinks is down"]
    assert course.pass_by(62, WELL) == []


def test_a_link_that_never_was_up_is_no_problem() -> None:
    course = Course()
    course.health = CardHealth()
    assert course.pass_by(600, replace(WELL, links=(True, False))) == []


def test_memory_that_cannot_be_replaced(course: Course) -> None:
    assert course.pass_by(2, replace(WELL, remap_failed=True)) == [
        "a row of its memory could not be replaced"
    ]


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 95, 119, 140])
def test_errors_of_the_card(xid: int) -> None:
    assert card_health.breaks_card(xid)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 63, 94])
def test_errors_of_programs_and_contained_ones(xid: int) -> None:
    assert not card_health.breaks_card(xid)


def test_errors_that_the_node_ignores() -> None:
    """Also errors that an earlier agent, which did not ignore them, has remembered."""
    other = "GPU-other"
    inventory = CardInventory(ignored_xids=(48,))
    inventory.restore({CARD: 48, other: 79})
    inventory.update({uuid: replace(card(), uuid=uuid) for uuid in (CARD, other)})
    inventory.fault(CARD, 48)
    problems = {uuid: one.problem for uuid, one in inventory.cards().items()}
    assert problems == {CARD: "", other: "the card reported XID 79"}
    assert inventory.faults == {other: 79}


def test_all_problems_are_told() -> None:
    now = 0.0
    inventory = CardInventory(lambda: now)
    for _ in range(3):
        inventory.update({CARD: replace(card(), readings=HOT)})
        now += 10.0
    inventory.fault(CARD, 79)
    found = inventory.cards()[CARD]
    assert found.problem == "the card reported XID 79; it is so hot that it slows down"
    assert found.readings == Readings()  # they change at every read, and must not cause a plan


def test_somebody_says_that_a_card_was_repaired(tmp_path: Path) -> None:
    inventory = CardInventory()
    inventory.restore({CARD: 79})
    inventory.update({CARD: card()})
    (tmp_path / f"{REPAIRED}{CARD}").touch()
    for uuid in card_health.take_repaired(tmp_path):
        inventory.repaired(uuid)
    assert inventory.cards()[CARD].problem == ""
    assert not card_health.take_repaired(tmp_path)


def test_the_runbook_names_the_file_of_a_repaired_card() -> None:
    named = re.findall(r"touch /var/lib/mizar/(\S+)UUID`", RUNBOOK.read_text())
    assert set(named) == {REPAIRED}


def test_the_runbook_has_the_table() -> None:
    text = RUNBOOK.read_text()
    for xids in (PROGRAM_XIDS, NOTED_XIDS):
        assert ", ".join(str(one) for one in sorted(xids)) in text
    for sign in SIGNS:
        assert f"| {sign.problem.partition(':')[0]} | {sign.after:g} s | {sign.calm:g} s |" in text
