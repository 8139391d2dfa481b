"""The chart on OpenShift, which admits a pod only if its SecurityContextConstraints allow all of
it. None of this has been run on OpenShift."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.chart import CHART, Chart, Object, pick
from unit.chart.golden import matches

ON = {"enabled": True}
KINDS = ("SecurityContextConstraints",)
OWN = "mizar-nodeagent"
NON_ROOT = "nonroot-v2"
"""OpenShift's own: any user but root, no capability, no folder of the node."""
REQUIRED = {
    "allowHostDirVolumePlugin",
    "allowHostIPC",
    "allowHostNetwork",
    "allowHostPID",
    "allowHostPorts",
    "allowPrivilegedContainer",
    "allowedCapabilities",
    "defaultAddCapabilities",
    "priority",
    "readOnlyRootFilesystem",
    "requiredDropCapabilities",
    "volumes",
}
"""The fields that OpenShift's CRD of SecurityContextConstraints requires."""
AGENT_WITH_MORE = {
    "privileged": True,
    "hostPID": False,
    "extraVolumes": [{"name": "a", "secret": {"secretName": "b"}}],
}


def agent(objects: list[Object]) -> Object:
    return dict(pick(objects, "DaemonSet", OWN)["spec"]["template"]["spec"])


def refusals(allowed: Object, pod: Object) -> Iterator[str]:
    """What these SecurityContextConstraints do not allow of a pod with one container."""
    (container,) = pod["containers"]
    security = container["securityContext"]
    capabilities = security.get("capabilities", {})
    kinds = {kind for one in pod["volumes"] for kind in one if kind != "name"}
    privileged = security.get("privileged", False)
    for word, wanted, may in (
        ("hostPID", pod["hostPID"], allowed["allowHostPID"]),
        ("hostPath", "hostPath" in kinds, allowed["allowHostDirVolumePlugin"]),
        ("volumes", not kinds <= set(allowed["volumes"]), False),
        ("privileged", privileged, allowed["allowPrivilegedContainer"]),
        (
            "escalation",
            security.get("allowPrivilegeEscalation", True),
            allowed["allowPrivilegeEscalation"],
        ),
        (
            "capabilities",
            not set(capabilities.get("add", ())) <= set(allowed["allowedCapabilities"]),
            False,
        ),
        (
            "not dropped",
            not set(allowed["requiredDropCapabilities"]) <= set(capabilities.get("drop", ())),
            False,
        ),
        ("root", security["runAsUser"] == 0, allowed["runAsUser"] == {"type": "RunAsAny"}),
        ("SELinux", "seLinuxOptions" in security, allowed["seLinuxContext"]["type"] == "RunAsAny"),
        (
            "seccomp",
            security["seccompProfile"] != {"type": "RuntimeDefault"},
            "runtime/default" not in allowed["seccompProfiles"],
        ),
        (
            "writable",
            not security["readOnlyRootFilesystem"],
            not allowed["readOnlyRootFilesystem"],
        ),
    ):
        if wanted and not may:
            yield word


def test_nothing_of_it_is_elsewhere(chart: Chart) -> None:
    """Other API servers do not know the kind."""
    objects = chart.render()
    assert not [one for one in objects if one["kind"] in KINDS or "openshift" in str(one)]
    assert "seLinuxOptions" not in str(agent(objects))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"spot": {"enabled": True}},
        {"nodeagent": {"mayKill": True, "hostPID": False}},
        {"nodeagent": {"privileged": True}},
        {"nodeagent": AGENT_WITH_MORE},
        {"nodeagent": {"driverRoot": "/run/nvidia/driver", "cardAccess": {"strategy": "NRI"}}},
    ],
)
def test_the_agent_is_allowed_what_it_asks_for_and_no_more(chart: Chart, values: Object) -> None:
    objects = chart.render(openshift=ON, **values)
    allowed, pod = pick(objects, "SecurityContextConstraints", OWN), agent(objects)
    assert list(refusals(allowed, pod)) == []
    security = pod["containers"][0]["securityContext"]
    assert allowed["allowHostPID"] is pod["hostPID"]
    assert allowed["allowPrivilegedContainer"] is security.get("privileged", False)
    assert allowed["allowedCapabilities"] == security.get("capabilities", {}).get("add", [])
    for other in ("allowHostNetwork", "allowHostIPC", "allowHostPorts"):
        assert allowed[other] is False
    assert (allowed["users"], allowed["groups"]) == ([], []), "a Role gives the right to use them"


@pytest.mark.parametrize("privileged", [True, False])
def test_all_fields_that_openshift_requires_are_there(chart: Chart, privileged: bool) -> None:
    objects = chart.render(openshift=ON, nodeagent={"privileged": privileged})
    found = pick(objects, "SecurityContextConstraints", OWN)
    assert {one for one in REQUIRED if found.get(one) is None} == set()
    assert found["priority"] == 0, "as if there were none: others do not come after it"


def test_what_is_not_allowed_is_noticed(chart: Chart) -> None:
    plain = pick(chart.render(openshift=ON), "SecurityContextConstraints", OWN)
    more = agent(chart.render(openshift=ON, nodeagent={**AGENT_WITH_MORE, "hostPID": True}))
    found = set(refusals(plain, more))
    assert found == {"volumes", "privileged", "escalation", "not dropped"}
    lends = agent(chart.render(openshift=ON, spot={"enabled": True}))
    assert set(refusals(plain, lends)) == {"capabilities"}


def uses(objects: list[Object], kind: str) -> dict[str, list[str]]:
    """Which SecurityContextConstraints a role may use, by the name of the role."""
    return {
        one["metadata"]["name"]: rule["resourceNames"]
        for one in objects
        if one["kind"] == kind
        for rule in one["rules"]
        if rule["apiGroups"] == ["security.openshift.io"]
        and (rule["resources"], rule["verbs"]) == (["securitycontextconstraints"], ["use"])
    }


def test_each_service_account_may_use_what_its_pods_need(chart: Chart) -> None:
    """In its own namespace alone; only the operator creates pods elsewhere."""
    objects = chart.render(openshift=ON)
    assert uses(objects, "Role") == {OWN: [OWN], "mizar-nonroot": [NON_ROOT]}
    assert uses(objects, "ClusterRole") == {"mizar-operator": [NON_ROOT]}
    binding = pick(objects, "RoleBinding", "mizar-nonroot")
    assert binding["roleRef"]["name"] == "mizar-nonroot"
    names = {one["name"] for one in binding["subjects"]}
    pods = [one for one in objects if one["kind"] in ("Deployment", "Job")]
    assert names == {one["spec"]["template"]["spec"]["serviceAccountName"] for one in pods}


def test_the_other_pods_are_no_more_than_nonroot_v2_allows(chart: Chart) -> None:
    for one in chart.render(openshift=ON):
        if one["kind"] in ("Deployment", "Job"):
            pod = one["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert not any("hostPath" in each for each in pod.get("volumes", ()))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"openshift": ON}, {"type": "spc_t", "level": "s0"}),
        ({"nodeagent": {"seLinuxOptions": {"type": "spc_t"}}}, {"type": "spc_t"}),
        ({"openshift": ON, "nodeagent": {"seLinuxOptions": {"type": "my_t"}}}, {"type": "my_t"}),
    ],
)
def test_selinux_lets_the_agent_open_the_kubelets_sockets(
    chart: Chart, values: Object, wanted: Object
) -> None:
    security = agent(chart.render(**values))["containers"][0]["securityContext"]
    assert security["seLinuxOptions"] == wanted


def test_golden(chart: Chart) -> None:
    objects = [one for one in chart.render(openshift=ON) if one["kind"] in KINDS]
    assert matches("openshift", objects)


def notes(chart: Chart, folder: Path, *flags: str, **values: Object) -> str:
    """What helm prints after an installation, which `helm template` leaves out."""
    copied = folder / "mizar"
    if not copied.exists():
        shutil.copytree(CHART, copied)
        (copied / "templates" / "NOTES.txt").rename(copied / "NOTES.txt")
        shown = 'notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n'
        (copied / "templates" / "notes.yaml").write_text(shown)
    where = ("template", "mizar", "--kube-version=1.36.0", "--show-only=templates/notes.yaml")
    status, output = chart.run(*where, *flags, values=values, folder=copied)
    assert status == 0, output
    return str(yaml.safe_load(output)["notes"])


def test_an_installation_without_the_value_is_warned_on_openshift(
    chart: Chart, tmp_path: Path
) -> None:
    there = "--api-versions=security.openshift.io/v1"
    warning = "WARNING: this cluster has SecurityContextConstraints"
    assert warning in notes(chart, tmp_path, there)
    assert "openshift.enabled" in notes(chart, tmp_path, there)
    assert warning not in notes(chart, tmp_path, there, openshift=ON)
    assert warning not in notes(chart, tmp_path)


def test_what_is_no_selinux_context_is_refused(chart: Chart) -> None:
    given: Object = {"nodeagent": {"seLinuxOptions": {"typ": "spc_t"}}}
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=given)
    assert status != 0 and "seLinuxOptions" in output
