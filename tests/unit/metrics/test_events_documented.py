"""docs/events.md names exactly the events, conditions and alerts that users see."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from mizar_core import names
from mizar_core.names import ConditionType, EventReason, SpotEvictionReason
from mizar_nodeagent.config import Strategy
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.spot.loan import CardState

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "events.md").read_text()
LINK = "docs/events.md"
ALERTS = ROOT / "charts" / "mizar" / "templates" / "alerts.yaml"
PLANNING = ROOT / "core" / "mizar_core" / "planning"
AGENT = ROOT / "nodeagent" / "mizar_nodeagent"

REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
STATUSES = (True, False, "True", "False", "Unknown")
MAKERS = {"ConditionState", "PodCondition", "_Condition", "_body", "Pending", "set_condition"}
"""What makes conditions: calls of these have a reason as their last argument but one, and
set_condition as its fourth."""


def words(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """The reasons that an expression may have as its value. One that is put together is left out:
    `of_pods` knows it."""
    if isinstance(node, ast.JoinedStr):
        return
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            if one.value.id == "EventReason":
                yield EventReason[one.attr]
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            if REASON.fullmatch(one.value):
                yield one.value
        elif isinstance(one, ast.Name) and one.id in constants:
            yield constants[one.id]


def values(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions in the place of a condition's reason: in calls of MAKERS, after a status in a
    tuple, or assigned to a variable `reason`."""
    match node:
        case ast.Call(func=ast.Name(id="set_condition"), args=args):
            yield args[3]
        case ast.Call(func=ast.Name(id=name), args=args) if name in MAKERS and len(args) > 1:
            yield args[-2]
        case ast.Tuple(elts=[ast.Constant(value=status), reason, _]) if status in STATUSES:
            yield reason
        case ast.Assign(targets=[ast.Name(id="reason")], value=value):
            yield value
        case ast.Assign(
            targets=[ast.Tuple(elts=[ast.Name(id="reason"), *_])],
            value=ast.Tuple(elts=[value, *_]),
        ):
            yield value


def reasons(path: Path, of: Callable[[str], bool] = lambda function: True) -> set[str]:
    """The reasons of the conditions that a module makes, in the functions `of`."""
    tree = ast.parse(path.read_text())
    constants = {
        one.targets[0].id: one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    }
    parts = [one for one in tree.body if of(getattr(one, "name", ""))]
    found = (value for part in parts for node in ast.walk(part) for value in values(node))
    return {word for value in found for word in words(value, constants)}


def denials() -> set[str]:
    """Why no shadow pod is created, which becomes a quota's condition. A pod without a quota is
    counted under none."""
    return {
        word
        for path in PLANNING.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "Denial"
        for word in words(node.args[0], {})
    } - {EventReason.NO_QUOTA}


def is_of_pool(function: str) -> bool:
    return function == "pool_ready"


def of_pools() -> set[str]:
    found = reasons(PLANNING / "quota_conditions.py", is_of_pool)
    found |= reasons(PLANNING / "planning_errors.py")
    return found | reasons(PLANNING / "spot" / "statuses.py")


def of_quotas() -> set[str]:
    found = reasons(PLANNING / "quota_conditions.py", lambda one: not is_of_pool(one))
    return found | reasons(PLANNING / "planning_errors.py") | denials()


def of_shadow_pods() -> set[str]:
    agents = ("adopt_shadow_pod", "planning_errors", "shadow_status")
    found = {one for name in agents for one in reasons(AGENT / "planning" / f"{name}.py")}
    stages = {str(one) for one in DrainStage if not one.offered}
    return found | reasons(PLANNING / "statuses.py") | stages


def of_pods() -> set[str]:
    found = {f"Card{one}" for one in CardState if one.healthy}
    for path in ("audit/isolation_condition.py", "overrides/report.py", "spot/owner_conditions.py"):
        found |= reasons(AGENT / path)
    return found


CONDITIONS = {
    "Conditions of a GPUPool": of_pools,
    "Conditions of a GPUQuota": of_quotas,
    "Conditions of a ShadowPod": of_shadow_pods,
    "Conditions of pods": of_pods,
}
TYPES = {
    "Conditions of a GPUPool": {ConditionType.READY, ConditionType.LENDING},
    "Conditions of a GPUQuota": {ConditionType.SATISFIED, ConditionType.EXHAUSTED},
    "Conditions of a ShadowPod": {
        ConditionType.READY,
        ConditionType.SCHEDULED,
        ConditionType.POD_IN_USING,
        ConditionType.HEALTHY,
        ConditionType.DRAINING,
    },
    "Conditions of pods": {
        names.POD_CONDITION_SETTINGS,
        names.POD_CONDITION_ISOLATION,
        names.POD_CONDITION_ACTIVE,
        names.POD_CONDITION_BORROWS,
    },
}


def section(title: str, page: str = PAGE) -> str:
    """The text below a heading, up to the next one that is not below it."""
    level = re.search(rf"^(##+) {title}$", page, re.MULTILINE)
    assert level, f"there is no heading {title}"
    marks = level[1]
    return re.split(rf"^#{{2,{len(marks)}}} ", page[level.end() :], flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The lines of tables, by the name in their first cell. No cell is empty."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            name, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
            assert len(rest) == 3 and all(rest), f"a cell is empty: {line}"
            assert name not in found, f"{name} is there twice"
            found[name.strip("`")] = rest
    return found


def listed(title: str, page: str = PAGE) -> set[str]:
    return set(rows(section(title, page)))


def conditions(title: str) -> dict[str, list[str]]:
    return rows(section(title).partition("\n### ")[0])


def test_each_event() -> None:
    assert listed("Events") == set(EventReason)


@pytest.mark.parametrize("title", CONDITIONS)
def test_each_reason_of_a_condition(title: str) -> None:
    assert set(conditions(title)) == CONDITIONS[title]()


@pytest.mark.parametrize("title", CONDITIONS)
def test_each_condition(title: str) -> None:
    found = [one for row in conditions(title).values() for one in re.findall("`([^`]+)`", row[0])]
    assert set(found) == TYPES[title]


def test_no_condition_is_left_out() -> None:
    told = set[str]().union(*TYPES.values())
    pods = {value for name, value in vars(names).items() if name.startswith("POD_CONDITION_")}
    assert told == set(ConditionType) | pods - {names.POD_CONDITION_CARD_ACCESS}


def test_the_condition_whose_reason_is_a_strategy() -> None:
    text = section("Conditions of pods").partition(f"`{names.POD_CONDITION_CARD_ACCESS}`")[2]
    told = text.partition("(")[2].partition(")")[0]
    assert set(re.findall("`([^`]+)`", told)) == set(get_args(Strategy))


def test_each_reason_for_which_a_spot_pod_loses_its_card() -> None:
    assert listed("Why a spot pod loses its card") == set(SpotEvictionReason)


def test_each_alert() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    assert len(alerts) > 10
    assert listed("Alerts") == alerts


def test_each_module_that_makes_conditions_is_read() -> None:
    """These pass on reasons that others have decided on."""
    others = {
        "access_report.py",
        "condition.py",
        "condition_body.py",
        "own_condition.py",
        "pod_conditions.py",
    }
    makes = re.compile(rf"\b(?:{'|'.join(MAKERS - {'_body'})}|condition_body|OwnCondition)\(")
    found = {
        path.name
        for folder in ("core", "kube", "nodeagent", "operator")
        for path in (ROOT / folder).rglob("*.py")
        if makes.search(path.read_text())
    }
    assert found - others == {
        "adopt_shadow_pod.py",
        "isolation_condition.py",
        "owner_conditions.py",
        "planning_errors.py",
        "quota_conditions.py",
        "report.py",
        "shadow_status.py",
        "statuses.py",
    }


def test_what_is_missing_is_noticed() -> None:
    """The checks themselves: a row that is taken away, and one too many."""
    without = "\n".join(one for one in PAGE.splitlines() if not one.startswith("| `NoQuota`"))
    assert set(EventReason) - listed("Events", without) == {EventReason.NO_QUOTA}
    more = PAGE.replace("| `NoQuota` |", "| `NoQuotaAtAll` | a | b | c |\n| `NoQuota` |")
    assert listed("Events", more) - set(EventReason) == {"NoQuotaAtAll"}


@pytest.mark.parametrize("page", ["README.md", "docs/runbooks/on-call.md"])
def test_readers_are_led_there(page: str) -> None:
    link = LINK if page == "README.md" else "../events.md"
    assert f"({link}" in (ROOT / page).read_text()
