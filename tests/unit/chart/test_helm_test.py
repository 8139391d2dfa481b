"""The pod that `helm test` runs."""

from __future__ import annotations

from mizar_kube.settings import read
from mizar_operator import installation_check
from mizar_operator.installation_check import Settings
from support.chart import Chart, pick

CHECK = ("Pod", "mizar-installation-check")


def test_it_exists_only_while_helm_tests(chart: Chart) -> None:
    notes = pick(chart.render(), *CHECK)["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "test"
    assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert notes["helm.sh/hook-output-log-policy"] == "hook-succeeded,hook-failed"


def test_it_runs_as_the_operator_does(chart: Chart) -> None:
    """With what other pods of the cluster need to be admitted, and with the rights to read."""
    operator = {
        "nodeSelector": {"pool": "system"},
        "priorityClassName": "high",
        "serviceAccount": {"create": False, "name": "other"},
        "labels": {"cost-centre": "7"},
        "annotations": {"example.com/inject": "false"},
    }
    pod = pick(chart.render(operator=operator), *CHECK)
    assert pod["metadata"]["labels"]["cost-centre"] == "7"
    assert pod["metadata"]["annotations"]["example.com/inject"] == "false"
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "system"}, "high")
    assert spec["serviceAccountName"] == "other"
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_its_arguments_are_the_releases(chart: Chart) -> None:
    labels = {"nvidia.com/gpu.present": None, "gpu": "true"}
    (container,) = pick(chart.render(nodeagent={"nodeSelector": labels}), *CHECK)["spec"][
        "containers"
    ]
    assert container["command"] == ["python", "-m", installation_check.__name__]
    found = read(Settings, container["args"])
    assert (found.release, found.node_selector) == ("mizar", {"gpu": "true"})


def test_it_is_not_counted_as_the_operator(chart: Chart) -> None:
    """Services, monitors and disruption budgets select by this label."""
    labels = pick(chart.render(), *CHECK)["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "installation-check"
