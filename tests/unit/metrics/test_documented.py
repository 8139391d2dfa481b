"""docs/metrics.md names exactly what the three programs expose, and promtool has no complaint about
their pages."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from mizar_core.models import Isolation
from mizar_core.planning import plan
from mizar_operator.metrics import Metrics as OperatorMetrics
from mizar_operator.spot.metrics import SpotMetrics
from mizar_operator.webhook.metrics import Metrics as WebhookMetrics
from property.plan.snapshots import NOW, ready, waiting
from support.metrics import PAGE, lint, problems
from support.planned import small
from support.waiting import until
from unit.nodeagent.test_assembly import World, world

__all__ = ["world"]
LINK = "docs/metrics.md"


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def operator_page() -> str:
    metrics = OperatorMetrics()
    SpotMetrics(metrics.registry)
    snapshot = small(shadows=(ready(),), shares=(waiting("p"),))
    metrics.planned("key", snapshot, plan(snapshot, NOW))
    metrics.refusals([(("team-a", "quota"), 2)])
    return page(metrics.registry)


def test_the_operators(promtool: Path) -> None:
    found = operator_page()
    assert problems("Operator", found) == []
    assert lint(promtool, found) == ""


def test_the_webhooks(promtool: Path) -> None:
    metrics = WebhookMetrics()
    metrics.reviews.labels("pods", "CREATE", "patched").inc()
    found = page(metrics.registry)
    assert problems("Webhook", found) == []
    assert lint(promtool, found) == ""


async def test_the_node_agents(world: World, promtool: Path) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    await world.start_share()
    await until(lambda: world.holders() == ["share"])
    assert world.app is not None
    found = page(world.app.registry)
    assert problems("Node agent", found) == []
    assert lint(promtool, found) == ""


def test_what_is_wrong_is_noticed(promtool: Path) -> None:
    """The checks themselves: an undocumented metric, another type, a series that is repeated."""
    found = operator_page()
    more = found + "# HELP mizar_new New.\n# TYPE mizar_new gauge\nmizar_new 1\n"
    assert problems("Operator", more) == ["mizar_new is not documented"]
    other = found.replace("TYPE mizar_leader gauge", "TYPE mizar_leader counter")
    assert problems("Operator", other)
    again = re.sub(r"^(mizar_pool_cards\{.*)$", r"\1\n\1", found, flags=re.MULTILINE)
    assert any("repeated" in one for one in problems("Operator", again))
    less = "\n".join(one for one in found.splitlines() if "mizar_leader" not in one) + "\n"
    assert problems("Operator", less) == ["mizar_leader is documented and not exposed"]
    assert "mizar_runs" in lint(promtool, "# TYPE mizar_runs counter\nmizar_runs 1\n")


def test_the_readme_leads_there() -> None:
    assert LINK in (PAGE.parents[1] / "README.md").read_text()
