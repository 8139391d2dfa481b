"""What docs/for-users.md shows works: its pods are admitted, and what it quotes exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mizar_core import names
from mizar_core.names import DEFAULT_POOL, EventReason
from mizar_operator.webhook.pod_review import Decision, review
from mizar_operator.webhook.pod_specs import pod_spec
from mizar_operator.webhook.resource_names import VisiblePools
from unit.webhook.builders import Object, pool

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "for-users.md").read_text()
OBJECTS = [
    body
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for body in yaml.safe_load_all(block)
]

KUBERNETES = {
    "CreateContainerConfigError",
    "FailedCreate",
    "FailedScheduling",
    "PodScheduled",
    "SchedulingGated",
    "UnexpectedAdmissionError",
}
"""Kubernetes' own states, reasons and conditions on the page."""


def decide(group: str, resource: str, body: Object) -> Decision:
    """The decision on an object in a namespace whose quota names the pool that the chart makes."""
    found = pod_spec(
        {
            "resource": {"group": group, "resource": resource},
            "operation": "CREATE",
            "namespace": "team-a",
            "object": body,
        }
    )
    assert found
    return review(found, VisiblePools([pool()], "team-a", [DEFAULT_POOL]), gates=True)


def test_there_are_a_pod_and_a_job() -> None:
    assert [(one["apiVersion"], one["kind"]) for one in OBJECTS] == [
        ("v1", "Pod"),
        ("batch/v1", "Job"),
    ]


@pytest.mark.parametrize("body", OBJECTS, ids=lambda body: body["kind"])
def test_what_it_shows_is_admitted(body: Object) -> None:
    """A Job's template, and the pods that are made of it."""
    if body["kind"] == "Job":
        decision = decide("batch", "jobs", body)
        assert (decision.refusals, decision.warnings) == ((), ())
        body = body["spec"]["template"]
    decision = decide("", "pods", body)
    assert (decision.refusals, decision.warnings) == ((), ())
    assert decision.rewritten == {"mizar.share/gpu.2": "team-a.mizar.share/gpu.2"}


def test_each_reason_exists() -> None:
    found = set(re.findall(r"`((?:[A-Z]+[a-z]+){2,})`", PAGE))
    assert found & set(EventReason)
    assert found - set(EventReason) == KUBERNETES


def test_each_annotation_that_a_pod_may_have() -> None:
    ours = {names.ANNOTATION_CARVE, names.ANNOTATION_DRAIN, names.ANNOTATION_SEQUENCE}
    ours |= {names.ANNOTATION_RESOURCE, names.ANNOTATION_CARDS}
    every = {value for name, value in vars(names).items() if name.startswith("ANNOTATION_")}
    table = PAGE.partition("\n### Annotations of a pod\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^:`]+): ", table, re.MULTILINE)) == every - ours


def test_each_message_of_the_shim_exists() -> None:
    table = PAGE.partition("\n### CUDA is refused\n")[2].partition("\n## ")[0]
    quoted = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))
    said = "".join(path.read_text() for path in sorted((ROOT / "shim" / "src").rglob("*.c")))
    assert len(quoted) > 5
    assert [one for one in quoted if one not in said] == []
    assert "CUDA is refused: " in said
