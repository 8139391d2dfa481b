"""What clusters with policies of their own set for every chart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mizar_kube.settings import read
from mizar_operator.settings import Settings as OperatorSettings
from mizar_operator.webhook.settings import Settings as WebhookSettings
from support.chart import Chart, Object, pick

PROGRAMS = {
    "operator": ("Deployment", "mizar-operator"),
    "webhook": ("Deployment", "mizar-webhook"),
    "nodeagent": ("DaemonSet", "mizar-nodeagent"),
}
CHECK = ("Job", "mizar-uninstall")
SEVERAL = ("operator", "webhook")


def template(objects: list[Object], kind: str, name: str) -> Object:
    return dict(pick(objects, kind, name)["spec"]["template"])


def images(objects: list[Object]) -> dict[str, str]:
    """The image of each program, and that of shadow pods."""
    found = {}
    for kind, name in (*PROGRAMS.values(), CHECK):
        (container,) = template(objects, kind, name)["spec"]["containers"]
        found[name.removeprefix("mizar-")] = container["image"]
    (operator,) = template(objects, *PROGRAMS["operator"])["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in operator["env"]}
    return found | {"pause": variables["MIZAR_PAUSE_IMAGE"]}


def test_all_images_come_from_one_registry_where_the_values_say_so(chart: Chart) -> None:
    digest = "ghcr.example.com/a/b@sha256:" + "a" * 64
    objects = chart.render(
        **{"global": {"imageRegistry": "mirror.example.com:5000/all/"}},
        image={"registry": "localhost/mizar", "tag": "7", "nodeagent": digest},
    )
    operator = "mirror.example.com:5000/all/mizar/operator:7"
    assert images(objects) == {
        "operator": operator,
        "webhook": operator,
        "uninstall": operator,
        "nodeagent": "mirror.example.com:5000/all/a/b@sha256:" + "a" * 64,
        "pause": "mirror.example.com:5000/all/pause:3.10",
    }
    policy = pick(objects, "ValidatingAdmissionPolicy", "mizar-operator")["spec"]
    assert "image == 'mirror.example.com:5000/all/pause:3.10'" in str(policy)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("pause", "mirror/pause"),
        ("library/pause:1", "mirror/library/pause:1"),
        ("localhost/pause", "mirror/pause"),
        ("host:5000/a/pause:1", "mirror/a/pause:1"),
        ("a.example/pause", "mirror/pause"),
    ],
)
def test_the_registry_of_an_image_is_what_container_runtimes_take_for_it(
    chart: Chart, named: str, found: str
) -> None:
    objects = chart.render(**{"global": {"imageRegistry": "mirror"}}, pauseImage=named)
    assert images(objects)["pause"] == found


def test_the_secrets_of_all_charts_are_added(chart: Chart) -> None:
    objects = chart.render(
        **{"global": {"imagePullSecrets": ["all", {"name": "more"}, {"name": "own"}]}},
        image={"pullSecrets": [{"name": "own"}]},
    )
    for kind, name in (*PROGRAMS.values(), CHECK):
        spec = template(objects, kind, name)["spec"]
        assert spec["imagePullSecrets"] == [{"name": one} for one in ("own", "all", "more")]
    assert "imagePullSecrets" not in str(chart.render())


def test_labels_of_the_organisation_are_on_all_objects_and_select_nothing(chart: Chart) -> None:
    values = {"networkPolicy": {"enabled": True}, "openshift": {"enabled": True}}
    metrics: Object = {"monitors": True, "alerts": True, "dashboard": {"enabled": True}}
    objects = chart.render(commonLabels={"team": "gpu"}, metrics=metrics, **values)
    made = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    assert [one for one in made if one["metadata"]["labels"].get("team") != "gpu"] == []
    for kind, name in (*PROGRAMS.values(), CHECK):
        one = pick(objects, kind, name)["spec"]
        assert one["template"]["metadata"]["labels"]["team"] == "gpu"
        assert "team" not in str(one.get("selector"))
    assert "team" not in str(pick(objects, "Service", "mizar-webhook")["spec"]["selector"])


def test_a_label_of_a_section_wins_and_is_there_once(chart: Chart) -> None:
    """Most parsers refuse an object that has a key twice."""
    flags = ("template", "mizar", "--kube-version=1.36.0")
    values = {
        "commonLabels": {"team": "gpu", "grafana_dashboard": "0", "release": "a", "tier": "1"},
        "operator": {"labels": {"team": "platform", "tier": ""}},
        "metrics": {
            "labels": {"release": "b"},
            "monitors": True,
            "alerts": True,
            "dashboard": {"enabled": True},
        },
    }
    status, output = chart.run(*flags, values=values)
    assert status == 0
    for labels in re.findall(r"^ +labels:\n((?: +[\w./-]+: .*\n)+)", output, re.MULTILINE):
        keys = re.findall(r"^ +([\w./-]+):", labels, re.MULTILINE)
        assert len(keys) == len(set(keys)), labels
    objects = chart.render(**values)
    labels = template(objects, *PROGRAMS["operator"])["metadata"]["labels"]
    assert (labels["team"], labels["tier"]) == ("platform", "")
    assert template(objects, *PROGRAMS["webhook"])["metadata"]["labels"]["team"] == "gpu"
    assert pick(objects, "PodMonitor", "mizar-operator")["metadata"]["labels"]["release"] == "b"
    shown = pick(objects, "ConfigMap", "mizar-dashboard")["metadata"]["labels"]
    assert shown["grafana_dashboard"] == "1"


@pytest.mark.parametrize("section", PROGRAMS)
def test_pods_have_the_labels_and_annotations_of_their_section(chart: Chart, section: str) -> None:
    given = {"labels": {"cost-centre": "7"}, "annotations": {"example.com/inject": "false"}}
    objects = chart.render(**{section: given})
    pods = {name: template(objects, *one)["metadata"] for name, one in PROGRAMS.items()}
    having = {name for name, one in pods.items() if one["labels"].get("cost-centre") == "7"}
    assert having == {section}
    assert pods[section]["annotations"].items() >= given["annotations"].items()


def test_the_check_of_the_uninstall_has_those_of_the_operator(chart: Chart) -> None:
    """Otherwise, what refuses other pods without them, or adds a sidecar that does not end, would
    hold up the uninstall."""
    given = {"labels": {"cost-centre": "7"}, "annotations": {"example.com/inject": "false"}}
    found = template(chart.render(operator=given), *CHECK)["metadata"]
    assert found["labels"]["cost-centre"] == "7"
    assert found["annotations"] == given["annotations"]


@pytest.mark.parametrize(
    "name", ["app.kubernetes.io/name", "app.kubernetes.io/component", "helm.sh/chart"]
)
@pytest.mark.parametrize("where", ["commonLabels", "operator", "nodeagent", "metrics"])
def test_labels_that_select_pods_cannot_be_changed(chart: Chart, where: str, name: str) -> None:
    labels = {name: "mine"}
    values = {where: labels} if where == "commonLabels" else {where: {"labels": labels}}
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=values)
    assert status != 0
    assert name in output or name.replace("/", "~1") in output


def test_old_replica_sets_are_kept_as_the_values_say(chart: Chart) -> None:
    for values, wanted in (({}, 10), ({"revisionHistoryLimit": 0}, 0)):
        objects = chart.render(**values)
        found = {pick(objects, *one)["spec"]["revisionHistoryLimit"] for one in PROGRAMS.values()}
        assert found == {wanted}


def users(objects: list[Object]) -> dict[str, set[str]]:
    """By program, the service accounts that its pod runs as and that its roles are bound to."""
    found: dict[str, set[str]] = {}
    for part, one in PROGRAMS.items():
        found[part] = {template(objects, *one)["spec"]["serviceAccountName"]}
    found["uninstall"] = {template(objects, *CHECK)["spec"]["serviceAccountName"]}
    for one in objects:
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            part = one["roleRef"]["name"].removeprefix("mizar-")
            for subject in one["subjects"]:
                if part in found and subject["kind"] == "ServiceAccount":
                    found[part].add(subject["name"])
    return found


def made(objects: list[Object]) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}


SECTIONS = (*PROGRAMS, "uninstall")


def test_service_accounts_may_have_other_names(chart: Chart) -> None:
    """The policies know each program by the name of its account."""
    own = {one: {"serviceAccount": {"name": f"team-{one}"}} for one in SECTIONS}
    objects = chart.render(openshift={"enabled": True}, **own)
    assert users(objects) == {one: {f"team-{one}"} for one in SECTIONS}
    assert made(objects) == {f"team-{one}" for one in SECTIONS}
    policies = str([one for one in objects if one["kind"] == "ValidatingAdmissionPolicy"])
    named = set(re.findall(r"system:serviceaccount:mizar-system:([\w-]+)", policies))
    assert named == {f"team-{one}" for one in PROGRAMS}
    bound = pick(objects, "RoleBinding", "mizar-nonroot")["subjects"]
    assert {one["name"] for one in bound} == {"team-operator", "team-webhook", "team-uninstall"}


def test_service_accounts_may_be_there_already(chart: Chart) -> None:
    given = {one: {"serviceAccount": {"create": False}} for one in SECTIONS}
    objects = chart.render(**given)
    assert made(objects) == set()
    assert users(objects) == {one: {f"mizar-{one}"} for one in SECTIONS}


def test_service_accounts_may_have_annotations(chart: Chart) -> None:
    notes = {"example.com/role": "none"}
    objects = chart.render(**{one: {"serviceAccount": {"annotations": notes}} for one in SECTIONS})
    for one in SECTIONS:
        account = pick(objects, "ServiceAccount", f"mizar-{one}")["metadata"]
        assert account["annotations"].items() >= notes.items()
        assert ("helm.sh/hook" in account["annotations"]) is (one == "uninstall")


def test_two_programs_with_one_service_account_are_refused(chart: Chart) -> None:
    """The policies of the one would not apply to the other, or refuse all that it does."""
    values = {one: {"serviceAccount": {"name": "shared"}} for one in ("operator", "nodeagent")}
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=values)
    assert status != 0
    assert "operator and nodeagent would both run as the service account shared" in output


def test_pods_get_their_token_whatever_their_service_account_says(chart: Chart) -> None:
    """One that is there already may have automountServiceAccountToken: false."""
    objects = chart.render()
    for one in (*PROGRAMS.values(), CHECK):
        assert template(objects, *one)["spec"]["automountServiceAccountToken"] is True


@pytest.mark.parametrize("section", SEVERAL)
def test_replicas_are_spread_as_the_values_say(chart: Chart, section: str) -> None:
    def spread(**values: Any) -> Any:
        found = template(chart.render(**{section: values}), *PROGRAMS[section])
        return found["spec"]["topologySpreadConstraints"]

    selector = {
        "matchLabels": {
            "app.kubernetes.io/name": "mizar",
            "app.kubernetes.io/instance": "mizar",
            "app.kubernetes.io/component": section,
        }
    }
    plain: Object = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    nodes = {**plain, "topologyKey": "kubernetes.io/hostname"}
    assert spread() == [{**nodes, "labelSelector": selector}]
    zones = {**plain, "topologyKey": "topology.kubernetes.io/zone"}
    own = {**zones, "labelSelector": {"matchLabels": {"a": "b"}}}
    found = spread(topologySpreadConstraints=[zones, own])
    assert found == [{**zones, "labelSelector": selector}, own]


@pytest.mark.parametrize("section", SEVERAL)
def test_budgets_are_as_the_values_say(chart: Chart, section: str) -> None:
    name = f"mizar-{section}"

    def budgets(**values: Any) -> dict[str, Object]:
        found = chart.render(**{section: {"replicas": 2, **values}})
        budgets = [one for one in found if one["kind"] == "PodDisruptionBudget"]
        return {one["metadata"]["name"]: one["spec"] for one in budgets}

    made = budgets()[name]
    assert (made["maxUnavailable"], made["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert made["selector"]["matchLabels"]["app.kubernetes.io/component"] == section
    half = budgets(podDisruptionBudget={"maxUnavailable": "50%"})[name]
    assert half["maxUnavailable"] == "50%"
    assert name not in budgets(podDisruptionBudget={"enabled": False})
    assert name not in budgets(replicas=1)


def test_the_webhook_serves_at_its_nodes_where_pods_are_not_reached(chart: Chart) -> None:
    """Only one replica of a node can have its ports, so an update ends one before it starts the
    next."""
    values: Object = {"hostNetwork": True, "port": 8443, "metricsPort": 19464}
    deployment = pick(chart.render(webhook=values), *PROGRAMS["webhook"])["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    spec = deployment["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    (webhook,) = spec["containers"]
    assert {one["name"]: one["containerPort"] for one in webhook["ports"]} == {
        "webhook": 8443,
        "metrics": 19464,
    }
    settings = read(WebhookSettings, webhook["args"])
    assert (settings.port, settings.metrics_port) == (8443, 19464)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"webhook": {"metricsPort": 9443}}, "are both 9443: the webhook needs two ports"),
        (
            {"webhook": {"hostNetwork": True}, "openshift": {"enabled": True}},
            "webhook.hostNetwork does not work with openshift.enabled",
        ),
    ],
)
def test_ports_that_the_webhook_cannot_have_are_refused(
    chart: Chart, values: Object, problem: str
) -> None:
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=values)
    assert status != 0 and problem in output


@pytest.mark.parametrize(
    "values",
    [
        {"operator": {"podDisruptionBudget": {"maxUnavailable": 0}}},
        {"webhook": {"podDisruptionBudget": {"minAvailable": 1}}},
        {"webhook": {"port": 443}},
        {"webhook": {"metricsPort": 1023}},
        {"nodeagent": {"serviceAccount": {"create": "no"}}},
        {"revisionHistoryLimit": -1},
        {"global": {"imageRegistry": "https://mirror.example.com"}},
        {"global": {"imagePullSecrets": [{"secret": "a"}]}},
    ],
)
def test_what_cannot_be_is_refused(chart: Chart, values: Object) -> None:
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=values)
    assert status != 0
    assert "values don't meet the specifications of the schema" in output


def test_the_operator_still_reads_its_settings(
    chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = chart.render(**{"global": {"imageRegistry": "mirror.example.com"}})
    (operator,) = template(objects, *PROGRAMS["operator"])["spec"]["containers"]
    for one in operator["env"]:
        monkeypatch.setenv(one["name"], one.get("value", "x"))
    assert read(OperatorSettings, []).pause_image == "mirror.example.com/pause:3.10"
