"""The chart's NetworkPolicies let in what its pods listen for, and out what they need."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.chart import CHART, Chart, Object, pick
from unit.chart.golden import matches

ON = {"enabled": True}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
PODS = ("Deployment", "DaemonSet", "Job")


def policies(objects: list[Object], labels: Object) -> list[Object]:
    """What the NetworkPolicies say that select a pod with these labels."""
    found = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    return [one for one in found if one["podSelector"]["matchLabels"].items() <= labels.items()]


def declared(template: Object) -> set[int]:
    """The ports that the containers of a pod declare."""
    containers = template["spec"]["containers"]
    return {one["containerPort"] for each in containers for one in each.get("ports", ())}


def open_ports(policy: Object) -> list[int]:
    """The ports of all rules of a policy for what comes in."""
    return [one["port"] for rule in policy["ingress"] for one in rule["ports"]]


def wrong(objects: list[Object]) -> Iterator[tuple[str, set[int]]]:
    """The pods of the chart of which the NetworkPolicies open other ports than they declare."""
    for one in objects:
        if one["kind"] in PODS:
            template = one["spec"]["template"]
            (policy,) = policies(objects, template["metadata"]["labels"])
            if differ := declared(template) ^ set(open_ports(policy)):
                yield one["metadata"]["name"], differ


def test_the_runbook_names_the_same_ports(chart: Chart) -> None:
    """For those who write policies themselves."""
    page = (CHART.parents[1] / "docs" / "runbooks" / "on-call.md").read_text()
    table = page.partition("\n## Network\n")[2].partition("\n## ")[0]
    told: dict[str, set[int]] = {}
    for names, port in re.findall(r"^\| ([a-z, ]+) \| .+ \| (\d+)(?: \(.+\))? \|$", table, re.M):
        for name in names.replace("node agents", "nodeagent").split(", "):
            told.setdefault(f"mizar-{name}", set()).add(int(port))
    objects = [one for one in chart.render(networkPolicy=ON) if one["kind"] == "NetworkPolicy"]
    found = {one["metadata"]["name"]: set(open_ports(one["spec"])) for one in objects}
    assert told == {name: ports for name, ports in found.items() if ports}


def test_there_are_none_unless_the_values_say_so(chart: Chart) -> None:
    assert not [one for one in chart.render() if one["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nodeagent": {"metricsPort": 19465}},
        {"webhook": {"port": 19443, "metricsPort": 19464}},
        {"webhook": {"certificates": {"source": "certManager"}}},
        {"uninstall": {"hold": True}, "spot": {"enabled": True}},
    ],
)
def test_each_pod_is_reached_where_it_listens_and_nowhere_else(
    chart: Chart, values: Object
) -> None:
    objects = chart.render(networkPolicy=ON, **values)
    assert dict(wrong(objects)) == {}
    for spec in (one["spec"] for one in objects if one["kind"] == "NetworkPolicy"):
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert {one["protocol"] for rule in spec["ingress"] for one in rule["ports"]} <= {"TCP"}


def test_a_port_without_a_rule_is_noticed(chart: Chart) -> None:
    objects = copy.deepcopy(chart.render(networkPolicy=ON))
    operator = pick(objects, "Deployment", "mizar-operator")["spec"]["template"]
    operator["spec"]["containers"][0]["ports"].append({"name": "new", "containerPort": 1})
    assert dict(wrong(objects)) == {"mizar-operator": {1}}


def test_by_default_no_pod_has_the_host_network(chart: Chart) -> None:
    """No policy would apply to it."""
    pods = [one["spec"]["template"]["spec"] for one in chart.render() if one["kind"] in PODS]
    assert pods and not any("hostNetwork" in one for one in pods)


def ingress(objects: list[Object], part: str, port: int) -> list[Any]:
    """Who may reach this port of a part: a list of peers for each rule, None for everyone."""
    rules = pick(objects, "NetworkPolicy", f"mizar-{part}")["spec"]["ingress"]
    return [
        rule.get("from") for rule in rules if {"protocol": "TCP", "port": port} in rule["ports"]
    ]


METRICS = (("operator", 9464), ("webhook", 9464), ("nodeagent", 9465))


@pytest.mark.parametrize(("part", "port"), METRICS)
def test_metrics_are_for_those_alone_whom_the_values_name(
    chart: Chart, part: str, port: int
) -> None:
    """They name the pods of all tenants."""
    peers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    assert ingress(chart.render(networkPolicy=ON), part, port) == [[MONITORING]]
    named = chart.render(networkPolicy={**ON, "metricsFrom": peers})
    assert ingress(named, part, port) == [peers]
    nobody = chart.render(networkPolicy={**ON, "metricsFrom": []})
    assert ingress(nobody, part, port) == []


def test_the_webhook_is_called_by_whom_no_selector_names(chart: Chart) -> None:
    """An API server is no pod, and network plugins see different addresses of it."""
    peers = [{"ipBlock": {"cidr": "192.0.2.0/28"}}]
    assert ingress(chart.render(networkPolicy=ON), "webhook", 9443) == [None]
    named = chart.render(networkPolicy={**ON, "webhookFrom": peers})
    assert ingress(named, "webhook", 9443) == [peers]


def egress(objects: list[Object]) -> dict[str, list[Object]]:
    found = [one for one in objects if one["kind"] == "NetworkPolicy"]
    return {one["metadata"]["name"]: one["spec"]["egress"] for one in found}


def test_all_programs_reach_api_servers_and_what_the_values_add(chart: Chart) -> None:
    def ports(*numbers: int) -> list[Object]:
        return [{"protocol": "TCP", "port": one} for one in numbers]

    names = ("operator", "webhook", "nodeagent", "installation-check", "uninstall")
    parts = [f"mizar-{one}" for one in names]
    plain = egress(chart.render(networkPolicy=ON))
    assert plain == {one: [{"ports": ports(443, 6443)}] for one in parts}
    server, dns = [{"ipBlock": {"cidr": "192.0.2.1/32"}}], {"ports": [{"port": 53}]}
    values = {**ON, "apiServers": server, "apiServerPorts": [8443], "extraEgress": [dns]}
    wanted = [{"to": server, "ports": ports(8443)}, dns]
    assert egress(chart.render(networkPolicy=values)) == dict.fromkeys(parts, wanted)


def test_the_check_of_the_uninstall_has_a_policy_where_it_runs(chart: Chart) -> None:
    without = chart.render(networkPolicy=ON, uninstall={"check": False})
    assert "mizar-uninstall" not in egress(without)
    made = pick(chart.render(networkPolicy=ON), "NetworkPolicy", "mizar-uninstall")
    assert "annotations" not in made["metadata"], "a hook may be created after the Job"


def test_golden(chart: Chart) -> None:
    objects = [one for one in chart.render(networkPolicy=ON) if one["kind"] == "NetworkPolicy"]
    assert matches("network-policies", objects)


@pytest.mark.parametrize(
    "values",
    [
        {"metricsFrom": {}},
        {"metricsFrom": [{"cidr": "192.0.2.0/28"}]},
        {"webhookFrom": [{}]},
        {"apiServers": ["192.0.2.1/32"]},
        {"apiServerPorts": []},
        {"apiServerPorts": [0]},
        {"enabled": "yes"},
        {"ingress": []},
    ],
)
def test_what_is_no_peer_is_refused(chart: Chart, values: Object) -> None:
    """The API server would ignore some of it, and let in everyone."""
    given = {"networkPolicy": {**ON, **values}}
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=given)
    assert status != 0
    assert "values don't meet the specifications of the schema" in output
