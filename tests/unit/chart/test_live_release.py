"""What the chart refuses on a cluster in which Mizar runs already."""

import re
from typing import Any

import pytest

from support.chart import CHART, Chart, Object, pick
from unit.chart.api_server import SERVED, ApiServer, serving

NAMESPACE = "mizar-system"
SHADOW_CLASS = "mizar-shadow-pods"
RUNBOOK = CHART.parents[1] / "docs" / "runbooks" / "change-values.md"


def upgraded(chart: Chart, live: list[Object], **values: Any) -> tuple[int, str]:
    """Exit status of helm and what it prints when a release with these objects is upgraded."""
    with serving(live) as server:
        return run_upgrade(chart, server, values)


def run_upgrade(chart: Chart, server: ApiServer, values: Object) -> tuple[int, str]:
    """Like `upgraded`, with an API server that the caller has."""
    return chart.run(
        *("template", "mizar", f"--namespace={NAMESPACE}", "--kube-version=1.36.0"),
        *("--is-upgrade", "--dry-run=server", "--kubeconfig=/dev/null"),
        *(f"--kube-apiserver={server.url}", "--api-versions=mizar.share/v1alpha1"),
        values=values,
    )


def installed(chart: Chart, **values: Any) -> list[Object]:
    """The chart's objects as helm leaves them in the cluster."""
    notes = {"meta.helm.sh/release-name": "mizar", "meta.helm.sh/release-namespace": NAMESPACE}
    found = chart.render(**values)
    for one in found:
        one["metadata"].setdefault("annotations", {}).update(notes)
    return found


@pytest.fixture(scope="module")
def live(chart: Chart) -> list[Object]:
    """What is in the cluster after an install without any values."""
    return installed(chart)


def shadow(*holders: str) -> Object:
    """A ShadowPod whose devices these pods hold, and one more that is free."""
    held = [{"holder": {"namespace": "team-a", "name": one}} for one in holders]
    meta = {"namespace": "team-a", "name": "shadow-2-abcde"}
    return {"kind": "ShadowPod", "metadata": meta, "status": {"devices": [{"id": "free"}, *held]}}


def pool(lent: int) -> Object:
    return {
        "kind": "GPUPool",
        "metadata": {"name": "big"},
        "spec": {},
        "status": {"cards": {"lent": lent}},
    }


def refusal(answer: tuple[int, str]) -> str:
    """The sentence with which helm refuses; empty if it does not."""
    status, said = answer
    return said.partition("): ")[2].partition("\n")[0] if status else ""


def test_the_same_values_are_no_change(chart: Chart, live: list[Object]) -> None:
    status, said = upgraded(chart, [*live, shadow("a"), pool(1)])
    assert status == 0, said


def test_objects_keep_their_names(chart: Chart, live: list[Object]) -> None:
    """The policies of both names would refuse each other's requests."""
    assert refusal(upgraded(chart, live, nameOverride="gpus")) == (
        "nameOverride cannot be changed while Mizar is installed: its objects are named mizar-..."
        " Leave it as it is, or run helm uninstall mizar --namespace mizar-system --no-hooks, which"
        " leaves pods and their cards as they are, and install Mizar again;"
        " docs/runbooks/change-values.md says how to remove what an earlier release or upgrade left"
    )
    named = installed(chart, nameOverride="gpus")
    assert upgraded(chart, named, nameOverride="gpus")[0] == 0
    assert "objects are named gpus-..." in refusal(upgraded(chart, named))


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_there_is_one_release(chart: Chart, field: str) -> None:
    (webhook,) = [one for one in chart.render() if one["kind"] == "MutatingWebhookConfiguration"]
    if field == "name":
        webhook["metadata"]["labels"]["app.kubernetes.io/instance"] = "first"
    else:
        webhook["webhooks"][0]["clientConfig"]["service"]["namespace"] = "infra"
    others = {"kind": webhook["kind"], "metadata": {"name": "by-url"}, "webhooks": [{}]}
    said = refusal(upgraded(chart, [others, webhook]))
    assert "Mizar is in this cluster already" in said
    assert f"{RUNBOOK.relative_to(CHART.parents[1])} says how to remove what it left" in said
    assert upgraded(chart, [others])[0] == 0


def test_the_runbook_removes_all_that_a_deleted_namespace_leaves(chart: Chart) -> None:
    (command,) = re.findall("^kubectl delete (.*) --selector (.*)$", RUNBOOK.read_text(), re.M)
    labels = dict(one.split("=") for one in command[1].split(","))
    left = [
        one
        for one in chart.render(spot={"enabled": True})
        if not one["metadata"].get("namespace") and one["kind"] != "CustomResourceDefinition"
    ]
    assert {plural(one["kind"]) for one in left} == set(command[0].split(","))
    assert all(labels.items() <= one["metadata"]["labels"].items() for one in left)


def plural(kind: str) -> str:
    """The name of a kind in kubectl's commands."""
    return re.sub("(?<=s)$", "e", re.sub("y$", "ie", kind.lower())) + "s"


def test_the_state_stays_where_it_is_while_it_is_used(chart: Chart, live: list[Object]) -> None:
    elsewhere = {"nodeagent": {"stateDir": "/data/mizar"}}
    used = [*live, shadow("d", "c"), shadow("b", "a", "a"), pool(1)]
    assert refusal(upgraded(chart, used, **elsewhere)) == (
        "nodeagent.stateDir cannot be changed from /var/lib/mizar to /data/mizar while pods share"
        " or borrow cards, since their limits would never be updated again: end team-a/a, team-a/b,"
        " team-a/c and 2 more first, or leave the value as it is"
    )
    assert "end the spot pods on cards of pool big first" in refusal(
        upgraded(chart, [*live, pool(2)], **elsewhere)
    )
    same = {"nodeagent": {"stateDir": "/var/lib/mizar/"}}
    assert upgraded(chart, used, **same)[0] == 0
    for unused in (live, [*live, shadow(), pool(0)], []):
        status, said = upgraded(chart, unused, **elsewhere)
        assert status == 0, said


@pytest.mark.parametrize(("section", "name"), [("shadowPods", SHADOW_CLASS), ("spot", "lent")])
def test_a_class_that_is_still_named_is_not_deleted(chart: Chart, section: str, name: str) -> None:
    def values(**of: Any) -> Object:
        found: Object = {"spot": {"enabled": True}}
        found.setdefault(section, {})["priorityClass"] = {"name": name, **of}
        return found

    there, left = installed(chart, **values()), values(create=False)
    assert refusal(upgraded(chart, there, **left)) == (
        f"this upgrade would delete PriorityClass {name}, which {section}.priorityClass.name still"
        f" names: run kubectl annotate priorityclass {name} helm.sh/resource-policy=keep first, or"
        " name another class"
    )
    kept = pick(there, "PriorityClass", name)["metadata"]["annotations"]
    kept["helm.sh/resource-policy"] = "keep"
    assert upgraded(chart, there, **left)[0] == 0
    kept["meta.helm.sh/release-name"] = "of-somebody-else"
    del kept["helm.sh/resource-policy"]
    assert upgraded(chart, there, **left)[0] == 0


def test_a_class_keeps_its_value(chart: Chart, live: list[Object]) -> None:
    changed: Object = {"shadowPods": {"priorityClass": {"value": 7}}}
    assert refusal(upgraded(chart, live, **changed)) == (
        f"Kubernetes does not allow changing the value of PriorityClass {SHADOW_CLASS} from"
        " 1000000000 to 7: change shadowPods.priorityClass.name as well"
    )
    changed["shadowPods"]["priorityClass"]["name"] = "another"
    assert upgraded(chart, live, **changed)[0] == 0


def test_a_class_of_a_release_of_the_same_name_elsewhere_is_left_alone(chart: Chart) -> None:
    there = installed(chart)
    notes = pick(there, "PriorityClass", SHADOW_CLASS)["metadata"]["annotations"]
    notes["meta.helm.sh/release-namespace"] = "classes"
    named: Object = {"priorityClass": {"create": False, "name": SHADOW_CLASS}}
    status, said = upgraded(chart, there, shadowPods=named)
    assert status == 0, said


def test_where_nothing_is_lent_any_more_the_class_of_spot_pods_may_go(chart: Chart) -> None:
    there = installed(chart, spot={"enabled": True})
    for left in ({"value": -5}, {"create": False, "name": "mizar-spot-pods"}):
        status, said = upgraded(chart, there, spot={"enabled": False, "priorityClass": left})
        assert status == 0, said


def test_classes_that_are_not_used_are_not_read(chart: Chart, live: list[Object]) -> None:
    """helm fails if whoever runs it has no right to what a template looks up."""
    with serving(live) as server:
        none: Object = {"shadowPods": {"priorityClass": {"create": False}}}
        status, said = run_upgrade(chart, server, none)
        assert status == 0, said
        assert not [one for one in server.asked if "priorityclasses" in one]
        assert run_upgrade(chart, server, {})[0] == 0
        (asked,) = [one for one in server.asked if "priorityclasses" in one]
        assert asked.endswith(f"/priorityclasses/{SHADOW_CLASS}")


def namespace(enforced: str) -> Object:
    """The release's namespace, in which this level of Pod Security is enforced, if any."""
    labels = {"kubernetes.io/metadata.name": NAMESPACE}
    if enforced:
        labels["pod-security.kubernetes.io/enforce"] = enforced
    return {"kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_a_namespace_that_refuses_node_agents_is_named(chart: Chart, level: str) -> None:
    """helm would wait for agents that cannot be created, or succeed without any."""
    assert refusal(upgraded(chart, [namespace(level)])) == (
        f"namespace {NAMESPACE} enforces Pod Security {level}, which refuses the node agents, since"
        f" they mount folders of their node: run kubectl label namespace {NAMESPACE}"
        " pod-security.kubernetes.io/enforce=privileged --overwrite first"
    )


@pytest.mark.parametrize("level", ["privileged", ""])
def test_other_namespaces_are_as_good_as_the_cluster_says(chart: Chart, level: str) -> None:
    status, said = upgraded(chart, [namespace(level)])
    assert status == 0, said


def test_the_runbook_names_what_helm_reads(chart: Chart, live: list[Object]) -> None:
    """Whoever runs it needs the right to."""
    with serving([*live, namespace("")]) as server:
        assert run_upgrade(chart, server, {"nodeagent": {"stateDir": "/data"}})[0] == 0
        asked = {one for path in server.asked for one in path.split("/")}
    plurals = {plural for kinds in SERVED.values() for plural in kinds}
    paragraph = RUNBOOK.read_text().split("\n\n")[2]
    for kind in {kind for kinds in SERVED.values() for kind in kinds.values()}:
        assert plural(kind) in plurals & asked
        assert kind in paragraph or kind.lower() in paragraph, kind
