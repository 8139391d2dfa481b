"""ADR 0008's table of the joined machine names each stage of the operator and of the agent."""

from __future__ import annotations

import re
from pathlib import Path

from mizar_core.planning.shadow_stage import ShadowStage
from mizar_nodeagent.planning.carving import DrainStage

ADR = Path(__file__).parents[3] / "docs" / "adr" / "0008-unhealthy-before-gone.md"


def _column(number: int) -> list[str]:
    table = ADR.read_text().partition("| ShadowStage | DrainStage |")[2].partition("\n\n")[0]
    return [row.split("|")[number].strip() for row in table.splitlines()[2:]]


def test_each_stage_of_the_operator_has_its_rows_in_the_order_of_the_enum() -> None:
    assert list(dict.fromkeys(_column(1))) == [one.name for one in ShadowStage]


def test_each_stage_of_the_agent_is_beside_one_of_the_operators() -> None:
    named = re.findall(r"\b[A-Z]\w+", " ".join(_column(2)))
    assert set(named) == {one.value for one in DrainStage}
