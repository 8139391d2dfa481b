"""What a request is about: its pod spec, and its log_fields for log lines."""

from typing import Any

import pytest

from mizar_operator.webhook.pod_specs import log_fields, pod_spec
from unit.webhook.builders import asking

Json = dict[str, Any]
PODS = {"group": "", "version": "v1", "resource": "pods"}
DEPLOYMENTS = {"group": "apps", "version": "v1", "resource": "deployments"}


def request(resource: Json, obj: Any, **more: Any) -> Json:
    return {"operation": "CREATE", "resource": resource, "object": obj, **more}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            request(PODS, {"metadata": {"name": "web-1"}}, namespace="team-a"),
            {"operation": "CREATE", "namespace": "team-a", "pod": "web-1"},
        ),
        (
            request(PODS, {"metadata": {"name": "web-1", "generateName": "web-"}}),
            {"operation": "CREATE", "pod": "web-1"},
        ),
        (
            request(PODS, {"metadata": {"generateName": "web-"}}),
            {"operation": "CREATE", "generate_name": "web-"},
        ),
        (
            request(DEPLOYMENTS, {"metadata": {}}, name="web", dryRun=True),
            {"operation": "CREATE", "kind": "deployments", "name": "web", "dry_run": "yes"},
        ),
        (request(PODS, None, name="web-1"), {"operation": "CREATE", "pod": "web-1"}),
        (request(PODS, {"metadata": None}, dryRun=False), {"operation": "CREATE"}),
    ],
)
def test_what_is_known_of_it_is_told(asked: Json, told: dict[str, str]) -> None:
    assert log_fields(asked) == told


def test_a_pod_has_its_labels_and_what_was_there_before() -> None:
    now, before = asking("mizar.share/gpu.2"), asking("mizar.share/gpu.4")
    obj = {"metadata": {"labels": {"app": "x"}}, "spec": now}
    pod = pod_spec(request(PODS, obj, oldObject={"spec": before}, namespace="team-a"))
    assert pod is not None
    assert (pod.spec, pod.old, pod.labels) == (now, before, {"app": "x"})
    assert (pod.namespace, pod.pointer, pod.template) == ("team-a", "/spec", False)


@pytest.mark.parametrize(("groups", "chosen"), [(["system:nodes"], ""), (["tenants"], "n1")])
def test_only_a_kubelet_can_say_that_a_pod_is_static(groups: list[str], chosen: str) -> None:
    """Anybody may set the annotation, and would bypass the scheduler."""
    meta = {"annotations": {"kubernetes.io/config.mirror": "hash"}}
    obj = {"metadata": meta, "spec": asking("mizar.share/gpu.2") | {"nodeName": "n1"}}
    pod = pod_spec(request(PODS, obj, userInfo={"groups": groups}))
    assert pod is not None
    assert pod.chosen_node == chosen


def test_what_names_no_namespace_is_in_none() -> None:
    pod = pod_spec(request(PODS, {"spec": {}}))
    assert pod is not None
    assert (pod.namespace, pod.old, pod.labels) == ("", None, None)


@pytest.mark.parametrize("obj", [None, {}, {"spec": None}, {"spec": "nonsense"}, {"spec": []}])
def test_without_a_spec_there_is_nothing_to_review(obj: Any) -> None:
    assert pod_spec(request(PODS, obj)) is None


def test_a_spec_elsewhere_is_none_of_a_pods() -> None:
    assert pod_spec(request(DEPLOYMENTS, {"spec": asking("mizar.share/gpu.2")})) is None
    assert pod_spec(request(DEPLOYMENTS | {"group": "apps.example.com"}, {"spec": {}})) is None
