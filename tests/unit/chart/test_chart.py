"""What the chart makes of its values, without a cluster."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from mizar_core.names import SpotEvictionReason, shadow_name
from mizar_core.spot_rules import CONFIG_MAP
from mizar_kube.settings import read
from mizar_nodeagent.config import Config
from mizar_nodeagent.overrides.model import Overrides, applied
from mizar_operator import uninstall
from mizar_operator.main import LEASE_NAME
from mizar_operator.settings import Settings as OperatorSettings
from mizar_operator.uninstall import Settings as UninstallSettings
from mizar_operator.webhook.pod_specs import POD_SPECS
from mizar_operator.webhook.settings import Settings as WebhookSettings
from support.chart import CHART, Chart, Object, parsed, pick

LOCAL = CHART / "values-local.yaml"
PROGRAMS = (
    ("Deployment", "mizar-operator"),
    ("Deployment", "mizar-webhook"),
    ("DaemonSet", "mizar-nodeagent"),
    ("Job", "mizar-uninstall"),
)


def operator_settings(objects: list[Object]) -> OperatorSettings:
    """The settings that the operator reads from the environment of its Deployment."""
    pod = pick(objects, "Deployment", "mizar-operator")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    with pytest.MonkeyPatch.context() as environment:
        for one in container["env"]:
            if "value" in one:
                environment.setenv(one["name"], one["value"])
        return read(OperatorSettings, [])


@pytest.fixture(scope="session")
def default(chart: Chart) -> list[Object]:
    """The chart as it is without any values."""
    return chart.render()


@pytest.fixture(scope="session")
def local(chart: Chart) -> list[Object]:
    """The chart as the local cluster gets it."""
    return chart.render(f"--values={LOCAL}")


def pods(objects: list[Object]) -> Iterator[Object]:
    for one in objects:
        if one["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield one["spec"]["template"]["spec"]


def rules(objects: list[Object], part: str) -> list[Object]:
    found = [
        rule
        for one in objects
        if one["kind"] in ("ClusterRole", "Role") and one["metadata"]["name"] == f"mizar-{part}"
        for rule in one["rules"]
    ]
    assert found
    return found


def test_no_setting_of_the_operator_is_left_out(chart: Chart, default: list[Object]) -> None:
    """helm keeps what an upgrade that failed has added, unless the next one sets it otherwise."""
    others = chart.render(
        operator={"extraArgs": ["--workers=1"]},
        shadowPods={"labels": {"a": "b"}, "annotations": {"a": "b"}},
        defaultPool={"create": False},
    )
    without = chart.render(shadowPods={"priorityClass": {"create": False}})
    (first, *rest) = [
        pick(objects, "Deployment", "mizar-operator")["spec"]["template"]["spec"]["containers"][0]
        for objects in (default, others, without)
    ]
    assert first["args"] == []
    for one in rest:
        assert one.keys() == first.keys()
        assert [each["name"] for each in one["env"]] == [each["name"] for each in first["env"]]
    assert operator_settings(others).default_pool is None
    assert operator_settings(without).shadow_priority_class == ""


def test_the_cpu_of_shadow_pods_is_settable(chart: Chart) -> None:
    operator = pick(chart.render(shadowPods={"cpu": "50m"}), "Deployment", "mizar-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert {"name": "MIZAR_SHADOW_CPU", "value": "50m"} in container["env"]
    for cpu in ("0", "50", "a lot", "1.5"):
        status, output = chart.run("lint", "--strict", values={"shadowPods": {"cpu": cpu}})
        assert (status == 0) is (cpu in ("50", "1.5")), output


@pytest.mark.parametrize("on", [True, False])
def test_the_gate_of_pods_that_may_preempt_is_settable(chart: Chart, on: bool) -> None:
    values: Object = {} if on else {"webhook": {"gatePreemption": False}}
    webhook = pick(chart.render(**values), "Deployment", "mizar-webhook")
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert read(WebhookSettings, container["args"]).gate_preemption is on


@pytest.mark.parametrize("delay", ["8760h", "30m", ""])
def test_for_how_long_autoscalers_ignore_share_pods_is_settable(chart: Chart, delay: str) -> None:
    values: Object = {} if delay == "8760h" else {"webhook": {"scaleUpDelay": delay}}
    webhook = pick(chart.render(**values), "Deployment", "mizar-webhook")
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    settings = read(WebhookSettings, container["args"])
    assert settings.scale_up_delay == settings.spot_settings.scale_up_delay == delay


@pytest.mark.parametrize("delay", ["a year", "8760", "0h", "-1h", "1h30m", "99999999h"])
def test_a_delay_is_one_whole_number_with_a_unit(chart: Chart, delay: str) -> None:
    status, said = chart.run("lint", "--strict", values={"webhook": {"scaleUpDelay": delay}})
    assert status != 0 and "scaleUpDelay" in said


def test_what_policies_want_of_shadow_pods_is_settable(chart: Chart) -> None:
    given = {
        "memory": "128Mi",
        "labels": {"team": "platform"},
        "annotations": {"example.com/inject": "false"},
    }
    operator = pick(chart.render(shadowPods=given), "Deployment", "mizar-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    for name, value in (
        ("MEMORY", "128Mi"),
        ("LABELS", '{"team":"platform"}'),
        ("ANNOTATIONS", '{"example.com/inject":"false"}'),
    ):
        assert {"name": f"MIZAR_SHADOW_{name}", "value": value} in container["env"]
    for wrong in ({"memory": "0"}, {"memory": "some"}, {"labels": {"team": 1}}):
        assert chart.run("lint", "--strict", values={"shadowPods": wrong})[0] != 0, wrong


def test_lint(chart: Chart) -> None:
    for flags in ((), (f"--values={LOCAL}",)):
        status, output = chart.run("lint", "--strict", *flags)
        assert status == 0, output


@pytest.mark.parametrize(
    "values",
    [
        {"operater": {}},
        {"webhook": {"replicas": 0}},
        {"webhook": {"certificates": {"source": "letsencrypt"}}},
        {"nodeagent": {"cardAccess": {"strategy": "Magic"}}},
        {"nodeagent": {"stateDir": "relative"}},
        {"nodeagent": {"ignoredXids": ["all"]}},
        {"logLevel": "loud"},
        {"policies": {"sharePodsMay": ["everything"]}},
        {"policies": {"foreignShares": True}},
        {"uninstall": {"waitSeconds": -1}},
        {"uninstall": {"hold": "yes"}},
        {"webhook": {"resourceNames": ["nvidia.com/gpu"]}},
        {"webhook": {"resourceNames": ["nvidia.com/mig-1g.5gb"]}},
        {"nodeagent": {"overrides": [{"settings": {}}]}},
        {"nodeagent": {"overrides": [{"nodes": ["n"], "settings": {"cardAccess": "CDI"}}]}},
    ],
)
def test_wrong_values_are_refused(chart: Chart, values: Object) -> None:
    status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=values)
    assert status != 0
    assert "values don't meet the specifications of the schema" in output


OF_OTHER_CHARTS = {"enabled"}
"""What a chart that depends on this one says of it."""


def test_every_value_is_in_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - OF_OTHER_CHARTS
    for name, section in values.items():
        about = schema["properties"][name]
        if isinstance(section, dict) and about != {"$ref": "#/definitions/labels"}:
            assert set(section) == set(about["properties"]), name


def unset(schema: Object, values: Object, definitions: Object) -> Iterator[tuple[str, ...]]:
    """The values that the templates cannot do without: sections, switches, choices and numbers."""
    for name, one in schema["properties"].items():
        about = definitions[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        if name not in values:
            continue
        if about.get("type") in ("boolean", "integer") or {"enum", "properties"} & set(about):
            yield (name,)
        if "properties" in about:
            yield from ((name, *rest) for rest in unset(about, values[name], definitions))


def test_values_of_an_older_chart_are_refused_before_anything_is_changed(chart: Chart) -> None:
    """`helm upgrade --reuse-values` takes all of the old chart's values, and none that the new one
    has beside them: a policy without its action, say, which the API server refuses half-way."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    missing = list(unset(schema, values, schema["definitions"]))
    assert {("policies", "foreignShares"), ("spot",), ("webhook", "certificates", "source")} <= {
        *missing
    }
    # What is above others cannot be missing beside them.
    for depth in {len(one) for one in missing}:
        wanted = {one for one in missing if len(one) == depth}
        older: Object = {}
        for *sections, name in wanted:
            within = older
            for section in sections:
                within = within.setdefault(section, {})
            within[name] = None
        status, output = chart.run("template", "mizar", "--kube-version=1.36.0", values=older)
        assert status != 0
        assert told_missing(output) == wanted


def told_missing(output: str) -> set[tuple[str, ...]]:
    """The values that helm says are missing."""
    return {
        (*filter(None, path.split("/")), name)
        for path, names in re.findall(
            "^ *- at '(.*)': missing propert(?:y|ies) (.*)$", output, re.M
        )
        for name in re.findall("'([^']+)'", names)
    }


def test_a_chart_may_depend_on_it(chart: Chart, tmp_path: Path) -> None:
    """It then gets what that chart says for all of its charts, and whether it is wanted."""
    shutil.copytree(CHART, tmp_path / "charts" / "mizar")
    needed = {"name": "mizar", "version": "0.1.0", "condition": "mizar.enabled"}
    above = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [needed]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(above))
    for enabled in (True, False):
        values = {"global": {"region": "here"}, "mizar": {"enabled": enabled, "logLevel": "DEBUG"}}
        where = ("template", "gpus", "--namespace=infra", "--kube-version=1.36.0")
        status, output = chart.run(*where, values=values, folder=tmp_path)
        assert status == 0, output
        found = [one["kind"] for one in parsed(output)]
        assert ("DaemonSet" in found) is enabled


def test_no_container_may_more_than_it_needs(default: list[Object], local: list[Object]) -> None:
    for lends, spec in (
        *((False, one) for one in pods(default)),
        *((True, one) for one in pods(local)),
    ):
        (container,) = spec["containers"]
        security = container["securityContext"]
        added: list[str] = []
        if (name := container["name"]) == "nodeagent":
            # It opens files that containers can give away, and ends processes of borrowers.
            added = ["DAC_OVERRIDE", "KILL"] if lends else ["DAC_OVERRIDE"]
        assert security["capabilities"] == {"drop": ["ALL"]} | ({"add": added} if added else {})
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert "privileged" not in security
        assert not {"hostNetwork", "hostIPC"} & set(spec)
        # Only the node agent must see whose processes are on a card.
        assert spec.get("hostPID", False) == (name == "nodeagent")
        profile = (spec.get("securityContext") or security)["seccompProfile"]
        assert profile == {"type": "RuntimeDefault"}


STRICT = {"isolation": {"enforcement": "Strict"}}


@pytest.mark.parametrize(
    ("values", "may"),
    [
        ({}, False),
        ({"nodeagent": {"mayKill": True}}, True),
        ({"nodeagent": {"privileged": True}}, True),
        ({"spot": {"enabled": True}}, True),
        ({"defaultPool": {"spec": {"isolation": {"compute": "Hard"}}}}, False),
        ({"defaultPool": {"spec": STRICT}}, True),
        ({"defaultPool": {"spec": {"defaultQuota": STRICT}}}, True),
        ({"defaultPool": {"create": False, "spec": STRICT}}, False),
        # As YAML reads a key whose fields are commented out.
        ({"defaultPool": {"spec": {"defaultQuota": None}}}, False),
        ({"defaultPool": {"spec": {"defaultQuota": {"isolation": None}}}}, False),
        ({"defaultPool": {"spec": {**STRICT, "defaultQuota": None}}}, True),
    ],
)
def test_the_webhook_knows_whether_the_agents_may_kill(
    chart: Chart, values: Object, may: bool
) -> None:
    """A default pool that is Strict has no other means than this."""
    objects = chart.render(**values)
    agent = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    security = agent["containers"][0]["securityContext"]
    can = security.get("privileged") or "KILL" in security["capabilities"]["add"]
    assert (bool(can), webhook_settings(objects).strict_kills_root_only) == (may, not may)


def test_only_the_node_agent_is_root_and_reaches_the_node(default: list[Object]) -> None:
    names = ("nodeagent", "operator", "uninstall", "webhook")
    for name, spec in zip(names, sorted_pods(default), strict=True):
        mounts_host = any("hostPath" in one for one in spec.get("volumes", []))
        non_root = spec.get("securityContext", {}).get("runAsNonRoot", False)
        assert (mounts_host, non_root) == (name == "nodeagent", name != "nodeagent")
        assert spec["serviceAccountName"] == f"mizar-{name}"


def sorted_pods(objects: list[Object]) -> list[Object]:
    return sorted(pods(objects), key=lambda spec: str(spec["serviceAccountName"]))


def test_nobody_may_everything(default: list[Object]) -> None:
    for part in ("operator", "webhook", "nodeagent", "uninstall"):
        for rule in rules(default, part):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_only_the_webhook_may_read_secrets_and_no_program_may_write_nodes(
    default: list[Object],
) -> None:
    kept, made = [rule for rule in rules(default, "webhook") if "secrets" in rule["resources"]]
    assert kept["resourceNames"] == ["mizar-webhook"]
    assert kept["verbs"] == ["get", "list", "watch", "update"]
    assert made["verbs"] == ["create"]
    for role in (one for one in default if one["kind"] == "ClusterRole"):
        assert not any("secrets" in rule["resources"] for rule in role["rules"])
    for part in ("operator", "nodeagent"):
        assert not any("secrets" in rule["resources"] for rule in rules(default, part))
    for part in ("operator", "webhook", "nodeagent"):
        for rule in rules(default, part):
            if "nodes" in rule["resources"]:
                assert set(rule["verbs"]) <= {"get", "list", "watch"}
    (configurations,) = [rule for rule in rules(default, "webhook") if "patch" in rule["verbs"]]
    assert configurations["resourceNames"] == ["mizar-webhook"]


def test_the_operator_may_take_its_own_lease_only(default: list[Object]) -> None:
    """In kube-system, the others are those of Kubernetes' controllers."""
    held, made = [rule for rule in rules(default, "operator") if "leases" in rule["resources"]]
    assert (held["resourceNames"], held["verbs"]) == ([LEASE_NAME], ["get", "update"])
    assert made["verbs"] == ["create"]


@pytest.mark.parametrize("classes", ["runtimeclasses", "priorityclasses"])
def test_the_webhook_may_look_for_the_classes_that_pools_name(
    default: list[Object], classes: str
) -> None:
    (rule,) = (one for one in rules(default, "webhook") if classes in one["resources"])
    assert rule["verbs"] == ["get"]


def test_the_operator_writes_no_status_of_a_pod_without_a_policy(default: list[Object]) -> None:
    """RBAC cannot say which pods, nor which part of their status."""
    (rule,) = (one for one in rules(default, "operator") if "pods/status" in one["resources"])
    assert (rule["resources"], rule["verbs"]) == (["pods/status"], ["patch"])
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-operator-conditions")["spec"]
    (asked,) = policy["matchConstraints"]["resourceRules"]
    assert (asked["resources"], asked["operations"]) == (["pods/status"], ["UPDATE"])
    assert policy["failurePolicy"] == "Fail"


def test_the_operator_only_reads_what_its_users_write(chart: Chart, default: list[Object]) -> None:
    """Except for a pool that it creates itself, or with which it asks whether the webhook is
    reached, and for a pool's default quota."""
    without = chart.render(defaultPool={"create": False})
    kinds = {"gpupools", "gpuquotas", "nodes", "namespaces"}
    for objects in (default, without):
        about = [rule for rule in rules(objects, "operator") if kinds & set(rule["resources"])]
        for kind in ("gpupools", "gpuquotas"):
            create = {"apiGroups": ["mizar.share"], "resources": [kind], "verbs": ["create"]}
            assert about.count(create) == 1
            about.remove(create)
        about.remove({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]})
        assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in about)


def test_the_operator_makes_the_pool_that_the_values_say(chart: Chart) -> None:
    for values, wanted in (
        ({}, {}),
        ({"spec": {"idleTimeoutSeconds": 60}}, {"idleTimeoutSeconds": 60}),
        ({"create": False}, None),
    ):
        objects = chart.render(defaultPool=values)
        assert operator_settings(objects).default_pool == wanted


def test_the_programs_understand_their_arguments(
    default: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (webhook,) = pick(default, "Deployment", "mizar-webhook")["spec"]["template"]["spec"][
        "containers"
    ]
    settings = read(WebhookSettings, [*webhook["args"], "--namespace=mizar-system"])
    assert settings.dns_name == "mizar-webhook.mizar-system.svc"
    ports = {one["name"]: one["containerPort"] for one in webhook["ports"]}
    assert ports == {"webhook": settings.port, "metrics": settings.metrics_port}
    (operator,) = pick(default, "Deployment", "mizar-operator")["spec"]["template"]["spec"][
        "containers"
    ]
    for one in operator["env"]:
        monkeypatch.setenv(one["name"], one.get("value", "x"))
    found = read(OperatorSettings, operator.get("args", []))
    assert found.pause_image == "registry.k8s.io/pause:3.10"
    assert [one["containerPort"] for one in operator["ports"]] == [found.metrics_port]


def test_all_programs_log_alike(chart: Chart) -> None:
    objects = chart.render(logLevel="DEBUG", logFormat="console")
    for kind, name in PROGRAMS:
        (container,) = pick(objects, kind, name)["spec"]["template"]["spec"]["containers"]
        told = {one["name"]: one.get("value") for one in container["env"]}
        assert (told["MIZAR_LOG_LEVEL"], told["MIZAR_LOG_FORMAT"]) == ("DEBUG", "console")


def test_the_node_agent_understands_its_configuration(
    default: list[Object], local: list[Object], tmp_path: Path
) -> None:
    for objects, strategy in ((default, "EnvVar"), (local, "Auto")):
        file = tmp_path / "nodeagent.yaml"
        file.write_text(pick(objects, "ConfigMap", "mizar-nodeagent")["data"][file.name])
        config = read(Config, [f"--config={file}", "--node-name=n"])
        assert config.card_access.strategy == strategy
        agent = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
        (container,) = agent["containers"]
        assert container["ports"] == [{"name": "metrics", "containerPort": config.metrics_port}]
        mounted = {one["mountPath"] for one in container["volumeMounts"]}
        assert {str(config.plugin_dir), str(config.state_dir)} <= mounted
        assert str(config.podresources_socket.parent) in mounted


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"failOnInitError": True}, "fail_on_init_error"),
        ({"hamiAnnotations": "Text"}, "hami_annotations"),
        ({"ignoredXids": [48]}, "ignored_xids"),
        ({"failRequestsGreaterThanOne": True}, "fail_requests_greater_than_one"),
        ({"heartbeatTimeoutSeconds": 2.5}, "heartbeat_timeout_seconds"),
        ({"ownerWaitSeconds": 10}, "owner_wait_seconds"),
        ({"cardAccess": {"strategy": "CDI", "also": ["EnvVar"]}}, "card_access.also"),
        (
            {"cardAccess": {"strategy": "CDI", "passDeviceSpecs": True}},
            "card_access.pass_device_specs",
        ),
        ({"cardAccess": {"strategy": "CDI", "gds": True}}, "card_access.gds"),
        ({"cardAccess": {"strategy": "CDI", "mofed": True}}, "card_access.mofed"),
        ({"cardAccess": {"strategy": "CDI", "gdrcopy": True}}, "card_access.gdrcopy"),
        (
            {
                "cardAccess": {
                    "strategy": "CDIAnnotations",
                    "cdiAnnotationPrefix": "cdi.example.com/",
                }
            },
            "card_access.cdi_annotation_prefix",
        ),
    ],
)
def test_values_of_the_node_agent_reach_it(
    chart: Chart, default: list[Object], values: Object, setting: str, tmp_path: Path
) -> None:
    def configured(objects: list[Object]) -> Any:
        file = tmp_path / "nodeagent.yaml"
        file.write_text(pick(objects, "ConfigMap", "mizar-nodeagent")["data"][file.name])
        return attrgetter(setting)(read(Config, [f"--config={file}", "--node-name=n"]))

    assert configured(chart.render(nodeagent=values)) != configured(default)


CDI_DIRS = {"/etc/cdi", "/var/run/cdi"}
# No folder that would have to be made on a node whose /etc is read-only.
VARIABLE = {"/var/run/cdi", "/etc/containerd"}
LOOKED_AT = {*CDI_DIRS, *VARIABLE, "/etc/nvidia-container-runtime"}


@pytest.mark.parametrize(
    ("access", "wanted"),
    [
        ({"strategy": "EnvVar", "on-one": "EnvVar"}, VARIABLE),
        ({"strategy": "EnvVar", "on-one": "EnvVar", "containerdConfig": None}, set()),
        ({"strategy": "EnvVar", "on-one": "CDI"}, {*CDI_DIRS, *VARIABLE}),
        ({"strategy": "CDI", "on-one": "CDI"}, {*CDI_DIRS, *VARIABLE}),
        ({"strategy": "CDI", "on-one": "CDI", "containerdConfig": None}, CDI_DIRS),
        ({"strategy": "CDIAnnotations", "on-one": "Mounts"}, CDI_DIRS),
        (
            {"strategy": "NRI", "nriGives": "CDI", "on-one": "Mounts"},
            {"/run/other", *CDI_DIRS, *VARIABLE},
        ),
        (
            {"strategy": "NRI", "nriGives": "EnvVar", "on-one": "CDI"},
            {"/run/other", *CDI_DIRS, *VARIABLE},
        ),
        ({"strategy": "NRI", "nriGives": "Mounts", "on-one": "Mounts"}, {"/run/other"}),
        ({"strategy": "NRI"}, {"/run/other", *LOOKED_AT}),
        ({"strategy": "Auto"}, {"/run/other", *LOOKED_AT}),
        ({"strategy": "CDI", "on-one": "Mounts"}, {*CDI_DIRS, *VARIABLE}),
        ({"strategy": "CDI", "on-one": "NRI"}, {"/run/other", *LOOKED_AT}),
        ({"strategy": "CDI", "on-one": "Auto"}, {"/run/other", *LOOKED_AT}),
    ],
)
def test_what_the_agent_looks_at_is_mounted(chart: Chart, access: Object, wanted: set[str]) -> None:
    """Of the runtime's socket, the folder is mounted, since the runtime makes the socket anew. A
    node that has a strategy of its own, `on-one`, has the mounts of all strategies."""
    access = {**access, "nriSocket": "/run/other/nri.sock"}
    own = {"cardAccess": {"strategy": access.pop("on-one", "CDI")}}
    values = {"cardAccess": access, "overrides": [{"nodes": ["n"], "settings": own}]}
    agent = pick(chart.render(nodeagent=values), "DaemonSet", "mizar-nodeagent")
    spec = agent["spec"]["template"]["spec"]
    paths = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    inside = {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    mine = {"/run/other", *LOOKED_AT}
    assert paths & mine == inside & mine == wanted


DEV, OTHER_DEV = "/dev", "/run/nvidia/driver/dev"
LIBRARIES = [{"hostPath": "/a", "containerPath": "/b"}]


@pytest.mark.parametrize(
    ("access", "own", "wanted"),
    [
        ({"strategy": "EnvVar"}, {}, set()),
        ({"strategy": "Mounts"}, {}, {DEV}),
        ({"strategy": "Mounts", "devRoot": OTHER_DEV}, {}, {OTHER_DEV}),
        ({"strategy": "CDI", "also": ["Mounts"]}, {}, {DEV}),
        ({"strategy": "CDI", "passDeviceSpecs": True}, {}, {DEV}),
        ({"strategy": "NRI"}, {}, set()),
        ({"strategy": "NRI", "nriGives": "Mounts"}, {}, {DEV}),
        ({"strategy": "CDI", "nriGives": "Mounts"}, {}, set()),
        ({"strategy": "NRI", "mounts": LIBRARIES}, {}, {DEV}),
        ({"strategy": "NRI", "nriGives": "CDI", "mounts": LIBRARIES}, {}, set()),
        ({"strategy": "Auto"}, {}, set()),
        ({"strategy": "Auto", "mounts": LIBRARIES}, {}, {DEV}),
        ({"strategy": "CDI"}, {"strategy": "Mounts"}, {DEV}),
        ({"strategy": "CDI"}, {"passDeviceSpecs": True, "devRoot": OTHER_DEV}, {DEV, OTHER_DEV}),
        ({"strategy": "CDI"}, {"strategy": "NRI", "nriGives": "Mounts"}, {DEV}),
        ({"strategy": "CDI", "mounts": LIBRARIES}, {"strategy": "Auto"}, {DEV}),
    ],
)
def test_folders_of_device_nodes_are_mounted_where_the_agent_looks(
    chart: Chart, access: Object, own: Object, wanted: set[str], tmp_path: Path
) -> None:
    """A pod's own /dev is not the node's. `own`: what one node has."""
    overrides = [{"nodes": ["n"], "settings": {"cardAccess": own}}]
    objects = chart.render(nodeagent={"cardAccess": access, "overrides": overrides})
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    folders = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"][:4] == "dev-"]
    assert {folders[one["name"]] for one in mounts} == wanted
    assert all(one["readOnly"] for one in mounts)
    look = agents_config(objects, tmp_path).card_access.seen
    assert {one["mountPath"] for one in mounts} == {str(look(Path(one))) for one in wanted}


def test_device_nodes_of_a_driver_elsewhere_come_with_it(chart: Chart, tmp_path: Path) -> None:
    """The driver's folder may be mounted later, when the driver's container starts."""
    root = "/run/nvidia/driver"
    objects = chart.render(nodeagent={"driverRoot": root, "cardAccess": {"strategy": "Mounts"}})
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    mounts = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}
    access = agents_config(objects, tmp_path).access
    mount = mounts[str(access.seen(Path(root)))]
    assert access.dev_root == Path(root, "dev") and mount["mountPath"] != root
    assert (mount["name"], mount["mountPropagation"]) == ("driver", "HostToContainer")
    assert not [one for one in mounts.values() if one["name"][:4] == "dev-"]


def test_the_agent_is_privileged_where_the_values_say_so(chart: Chart) -> None:
    objects = chart.render(nodeagent={"privileged": True})
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    security = spec["containers"][0]["securityContext"]
    assert security["privileged"] and "allowPrivilegeEscalation" not in security


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        ({}, True),
        ({"privileged": True}, False),
        ({"runtimeClassName": "nvidia"}, False),
        ({"extraVolumeMounts": [{"name": "dev", "mountPath": "/dev"}]}, False),
        ({"extraVolumeMounts": [{"name": "simgpu", "mountPath": "/run/simgpu"}]}, True),
    ],
)
def test_the_agent_knows_whether_the_default_runtime_alone_gives_it_the_driver(
    chart: Chart, values: Object, plain: bool, tmp_path: Path
) -> None:
    objects = chart.render(nodeagent=values)
    assert agents_config(objects, tmp_path).by_default_runtime is plain


@pytest.mark.parametrize(
    ("values", "mounted"),
    [
        ({"privileged": True}, True),
        ({}, False),
        ({"privileged": True, "runtimeClassName": "nvidia"}, False),
        ({"privileged": True, "driverRoot": "/home/kubernetes/bin/nvidia"}, False),
    ],
)
def test_a_privileged_agent_without_a_runtime_class_finds_the_nodes_driver(
    chart: Chart, values: Object, mounted: bool, tmp_path: Path
) -> None:
    objects = chart.render(nodeagent=values)
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    volumes = [one for one in spec["volumes"] if one.get("hostPath", {}).get("path") == "/"]
    names = {one["name"] for one in volumes}
    mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] in names]
    root = agents_config(objects, tmp_path).nodes_root
    assert [one["mountPath"] for one in mounts] == ([str(root)] if mounted else [])
    assert (root is not None) is mounted and all(one["readOnly"] for one in mounts)
    # A mount of the node's that ends must not be kept by the agent.
    assert all(one["mountPropagation"] == "HostToContainer" for one in mounts)


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ([], {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}),
        (
            [{"name": "A", "value": "b"}, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}],
            {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "A": "b"},
        ),
    ],
)
def test_the_agent_sees_all_cards_whatever_variables_are_added(
    chart: Chart, extra: list[Object], wanted: dict[str, str]
) -> None:
    agent = pick(chart.render(nodeagent={"extraEnv": extra}), "DaemonSet", "mizar-nodeagent")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    names = [one["name"] for one in container["env"]]
    assert len(names) == len(set(names)), "an upgrade may lose one of two of a name"
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told.items() >= wanted.items()


OPERATORS_LABELS = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin")


def test_the_agent_leaves_nodes_whose_driver_is_being_changed(default: list[Object]) -> None:
    """As the GPU Operator marks them; it would wait for an agent that holds the driver."""
    agent = pick(default, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    wanted = agent["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = wanted["nodeSelectorTerms"]

    def fits(labels: dict[str, str]) -> bool:
        assert all(one["operator"] == "NotIn" for one in term["matchExpressions"])
        return all(labels.get(one["key"]) not in one["values"] for one in term["matchExpressions"])

    assert fits({}) and fits(dict.fromkeys(OPERATORS_LABELS, "true"))
    for label in OPERATORS_LABELS:
        for value in ("false", "paused-for-driver-upgrade", "paused-for-mig-change"):
            assert not fits({label: value}), (label, value)


def agents_config(objects: list[Object], folder: Path) -> Config:
    """The settings that the agent reads from what the chart gives all nodes."""
    file = folder / "nodeagent.yaml"
    file.write_text(pick(objects, "ConfigMap", "mizar-nodeagent")["data"][file.name])
    return read(Config, [f"--config={file}", "--node-name=n"])


def test_a_driver_elsewhere_is_mounted_where_the_agent_looks(chart: Chart, tmp_path: Path) -> None:
    objects = chart.render(nodeagent={"driverRoot": "/run/nvidia/driver"})
    file = tmp_path / "nodeagent.yaml"
    file.write_text(pick(objects, "ConfigMap", "mizar-nodeagent")["data"][file.name])
    config = read(Config, [f"--config={file}", "--node-name=n"])
    assert config.access.dev_root == Path("/run/nvidia/driver/dev")
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "driver"]
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "driver"]
    assert volume["hostPath"]["path"] == mount["mountPath"] == str(config.driver_root)
    assert mount["mountPropagation"] == "HostToContainer"


def test_overrides_are_read_where_the_chart_mounts_them(chart: Chart) -> None:
    own = {"nodes": ["n"], "settings": {"cardAccess": {"strategy": "CDI", "gds": True}}}
    objects = chart.render(nodeagent={"overrides": [own]})
    data = pick(objects, "ConfigMap", "mizar-nodeagent-overrides")["data"]
    config = read(Config, ["--node-name=n"])
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "overrides"]
    assert config.overrides
    assert str(config.overrides.parent) == mount["mountPath"]
    found = applied(config, Overrides.parse(data[config.overrides.name]).of("n", {}))
    assert (found.card_access.strategy, found.card_access.gds) == ("CDI", True)


def test_a_changed_override_starts_no_agent_anew_by_itself(chart: Chart) -> None:
    own = {"nodes": ["n"], "settings": {"logLevel": "DEBUG"}}
    before, after = chart.render(), chart.render(nodeagent={"overrides": [own]})
    assert pick(before, "DaemonSet", "mizar-nodeagent") == pick(
        after, "DaemonSet", "mizar-nodeagent"
    )


def test_a_changed_configuration_starts_the_agents_anew(chart: Chart) -> None:
    def checksum(**values: Any) -> str:
        agent = pick(chart.render(**values), "DaemonSet", "mizar-nodeagent")
        return str(agent["spec"]["template"]["metadata"]["annotations"])

    assert checksum() != checksum(logLevel="DEBUG")


def test_the_webhook_is_called_for_every_kind_that_it_knows(default: list[Object]) -> None:
    configuration = pick(default, "MutatingWebhookConfiguration", "mizar-webhook")
    asked = {
        (group, resource)
        for webhook in configuration["webhooks"]
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert asked == {*POD_SPECS, ("mizar.share", "gpupools")}


def test_the_webhook_holds_up_share_pods_only(default: list[Object]) -> None:
    configuration = pick(default, "MutatingWebhookConfiguration", "mizar-webhook")
    for webhook in configuration["webhooks"]:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["sideEffects"] == "None"
        assert "caBundle" not in webhook["clientConfig"], "an upgrade would take it away"
        if webhook["name"] == "numbers.mizar.share":
            continue
        names = [one["name"] for one in webhook["matchConditions"]]
        assert names == ["asks-for-a-share", "asks-anew"]
        (selector,) = webhook["namespaceSelector"]["matchExpressions"]
        assert selector["values"] == ["mizar-system", "kube-system"]


def test_the_webhook_is_called_for_the_names_that_pools_may_give(chart: Chart) -> None:
    objects = chart.render(webhook={"resourceNames": ["nvidia.com/vgpu", "a.example/b"]})
    webhooks = pick(objects, "MutatingWebhookConfiguration", "mizar-webhook")["webhooks"]
    called = [one for one in webhooks if "k in ['nvidia.com/vgpu','a.example/b']" in str(one)]
    assert len(called) == 4, "pods, templates, cron jobs, PodTemplates"
    spec = pick(objects, "Deployment", "mizar-webhook")["spec"]["template"]["spec"]
    settings = read(WebhookSettings, spec["containers"][0]["args"])
    assert settings.resource_names == ("nvidia.com/vgpu", "a.example/b")


def test_several_webhooks_are_spread_and_not_all_evicted(chart: Chart) -> None:
    several = chart.render(webhook={"replicas": 3})
    budget = pick(several, "PodDisruptionBudget", "mizar-webhook")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "broken ones hold up a drain"
    spread = pick(several, "Deployment", "mizar-webhook")["spec"]["template"]["spec"]
    assert spread["topologySpreadConstraints"]
    one = chart.render(webhook={"replicas": 1})
    assert not [obj for obj in one if obj["kind"] == "PodDisruptionBudget"]


FOR_EACH_POD = {"pods", "pods/status", "pods/binding", "bindings", "nodes/status", "events"}
"""What every pod of a cluster, or every node, has the API server asked for."""


def test_nothing_that_each_pod_needs_goes_through_all_shadow_pods(default: list[Object]) -> None:
    """A binding took the API server 0.5 s in a namespace of 4,000, and 1,000 more shadow pods made
    each of them slower still."""
    policies = [one["spec"] for one in default if one["kind"] == "ValidatingAdmissionPolicy"]
    by_shadow_pod = [one for one in policies if one.get("paramKind", {}).get("kind") == "ShadowPod"]
    assert by_shadow_pod
    for policy in by_shadow_pod:
        rules = policy["matchConstraints"]["resourceRules"]
        asked = {resource for rule in rules for resource in rule["resources"]}
        assert not asked & FOR_EACH_POD
        assert policy["matchConditions"][0]["expression"].startswith("params.metadata.name == ")


def test_a_shadow_pods_name_is_known_where_a_node_is_given(default: list[Object]) -> None:
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-shadow-pods-node")["spec"]
    assert policy["failurePolicy"] == "Fail" and "paramKind" not in policy
    (pattern,) = re.findall(r"matches\('(.+)'\)", policy["matchConditions"][0]["expression"])
    for profile, number in itertools.product((1, 2, 16, 9999), range(1, 300)):
        assert re.search(pattern, shadow_name("uid", profile, number))
    for other in ("shadow-2-0", "shadow-5d4f7c9b8-x7k4q", "shadow-2", "my-shadow-2-x7k4q", ""):
        assert not re.search(pattern, other)


def test_a_shadow_pods_claim_is_known_by_its_name_and_by_its_owner(default: list[Object]) -> None:
    """The scheduler appends a suffix and five characters to the pod's name."""
    pods = pick(default, "ValidatingAdmissionPolicy", "mizar-shadow-claims")["spec"]
    claims = pick(default, "ValidatingAdmissionPolicy", "mizar-shadow-claim-objects")["spec"]
    assert pods["failurePolicy"] == claims["failurePolicy"] == "Fail"
    (by_name,) = re.findall(r"matches\('(.+)'\)", pods["validations"][0]["expression"])
    condition = claims["matchConditions"][0]["expression"]
    by_owner, same = re.findall(r"matches\('(\S+)'\)", condition)
    assert by_owner == same
    assert "(request.operation != 'DELETE' && has(object.metadata.annotations)" in condition
    assert "(request.operation != 'CREATE' && has(oldObject.metadata.annotations)" in condition
    for profile in (1, 2, 16, 9999):
        name = shadow_name("uid", profile, 7)
        assert re.search(by_name, f"{name}-extended-resources-x7k4q")
        assert re.search(by_owner, name)
    for other in ("train-extended-resources-x7k4q", "my-shadow-2-x7k4q-extended-resources-x7k4q"):
        assert not re.search(by_name, other)
    assert not re.search(by_owner, "shadow-2-x7k4q-0")
    assert "kind" not in condition, "the scheduler does not look at the owner's kind"


def test_no_policy_refuses_everything_while_its_parameters_kind_is_unknown(
    default: list[Object],
) -> None:
    """An API server that has just started does not know Mizar's kinds for up to 30 s. A policy with
    such parameters that fails closed then refuses every pod of the cluster."""
    policies = [one for one in default if one["kind"] == "ValidatingAdmissionPolicy"]
    by_kind = {
        (one["spec"]["paramKind"]["kind"], one["spec"]["failurePolicy"])
        for one in policies
        if "paramKind" in one["spec"]
    }
    assert by_kind == {("GPUPool", "Ignore"), ("ShadowPod", "Ignore")}


def test_the_webhook_makes_no_secret_but_its_own(chart: Chart, default: list[Object]) -> None:
    """RBAC cannot limit a creation to a name."""
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-webhook")["spec"]
    (who,) = policy["matchConditions"]
    assert "'system:serviceaccount:mizar-system:mizar-webhook'" in who["expression"]
    (rule,) = policy["validations"]
    assert "object.metadata.name == 'mizar-webhook'" in rule["expression"]
    assert pick(default, "ValidatingAdmissionPolicyBinding", "mizar-webhook")
    managed = chart.render(webhook={"certificates": {"source": "certManager"}})
    names = [one["metadata"]["name"] for one in managed if "AdmissionPolicy" in one["kind"]]
    assert "mizar-webhook" not in names


def test_cert_manager_in_place_of_our_own(chart: Chart) -> None:
    objects = chart.render(webhook={"certificates": {"source": "certManager"}})
    assert not [one for one in objects if one["kind"] == "Secret"]
    assert not any("secrets" in rule["resources"] for rule in rules(objects, "webhook"))
    certificate = pick(objects, "Certificate", "mizar-webhook")["spec"]
    assert certificate["dnsNames"] == ["mizar-webhook.mizar-system.svc"]
    (volume,) = pick(objects, "Deployment", "mizar-webhook")["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == certificate["secretName"] != "mizar-webhook", (
        "helm would not take over a Secret that cert-manager has made"
    )
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = pick(objects, kind, "mizar-webhook")["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "mizar-system/mizar-webhook"}
    (container,) = pick(objects, "Deployment", "mizar-webhook")["spec"]["template"]["spec"][
        "containers"
    ]
    assert read(WebhookSettings, container["args"]).certificate_dir == Path("/certificate")


def test_a_renewal_by_cert_manager_keeps_the_authority(chart: Chart) -> None:
    """A self-signed certificate is its own authority. With cert-manager before 1.19, API servers
    know only the renewed one at once, but the kubelet gives it to the webhook up to a minute and a
    half later, and until then share pods were refused."""
    objects = chart.render(webhook={"certificates": {"source": "certManager"}})
    authority = pick(objects, "Certificate", "mizar-webhook-authority")["spec"]
    assert authority["isCA"]
    assert authority["privateKey"]["rotationPolicy"] == "Never", "old signatures stay valid"
    assert pick(objects, "Issuer", authority["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    issuer = pick(objects, "Certificate", "mizar-webhook")["spec"]["issuerRef"]
    signing = pick(objects, issuer["kind"], issuer["name"])["spec"]
    assert signing == {"ca": {"secretName": authority["secretName"]}}
    theirs = {"source": "certManager", "issuerRef": {"kind": "ClusterIssuer", "name": "company"}}
    objects = chart.render(webhook={"certificates": theirs})
    (certificate,) = [one for one in objects if one["kind"] in ("Issuer", "Certificate")]
    assert certificate["spec"]["issuerRef"] == theirs["issuerRef"]


def test_the_charts_own_issuer_is_named_with_its_kind(chart: Chart) -> None:
    """With a kind and no name, cert-manager looked for a ClusterIssuer that nobody creates, so that
    the webhook never got its certificate."""
    ours = {"source": "certManager", "issuerRef": {"kind": "ClusterIssuer"}}
    objects = chart.render(webhook={"certificates": ours})
    issuer = pick(objects, "Certificate", "mizar-webhook")["spec"]["issuerRef"]
    assert pick(objects, issuer["kind"], issuer["name"])


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"memoryScaling": 1.5}, "spec.memoryScaling: write 1.5 in quotes"),
        ({"tenancy": "shared"}, "spec.tenancy: shared is none of PerNamespace, Shared"),
        (
            {"profile": []},
            "spec: a GPUPool has no field profile there, only cardModels, coreScaling",
        ),
        ({"isolation": {"compute": "hard"}}, "spec.isolation.compute: hard is none of None, Hard"),
        (
            {"profiles": [{"devices": 2, "card": 1}]},
            "spec.profiles[0]: a GPUPool has no field card there, only alias, cards, devices,",
        ),
    ],
)
def test_a_default_pool_that_cannot_be_is_refused(
    chart: Chart, spec: Object, sentence: str
) -> None:
    """helm would succeed, and there would be no pool, or one without what was meant; and a pool's
    tenancy cannot be changed."""
    template = ("template", "mizar", "--kube-version=1.36.0")
    status, said = chart.run(*template, values={"defaultPool": {"spec": spec}})
    assert status != 0
    assert f"defaultPool.{sentence}" in said
    assert chart.run(*template, values={"defaultPool": {"create": False, "spec": spec}})[0] == 0


def test_a_default_pool_may_have_every_field(chart: Chart) -> None:
    spec = {
        "nodeSelector": {"gpu": "true"},
        "tenancy": "Shared",
        "cardModels": ["NVIDIA-A100*"],
        "memoryScaling": "1.5",
        "coreScaling": 2,
        "isolation": {"memory": "Oversubscribe", "compute": "None", "mayOptOut": True},
        "profiles": [{"devices": 10, "cards": 1, "memory": "4Gi"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "defaultQuota": {"profiles": [{"devices": 10, "max": 1}]},
        "spot": {"enabled": True, "namespaces": ["a"], "reserve": "2Gi"},
    }
    assert operator_settings(chart.render(defaultPool={"spec": spec})).default_pool == spec


POLICIES = ("tenancy", "shadowPods", "operator", "sharePods", "spotPods", "nodeagent", "webhook")
ESCAPES = ("visibleDevices", "driverVariables", "mounts", "hostPaths", "hostPID", "privileged")


@pytest.mark.parametrize("escape", ESCAPES)
def test_share_pods_may_what_the_values_say(chart: Chart, escape: str) -> None:
    def sentences(may: list[str]) -> set[str]:
        policies = chart.render(policies={"sharePodsMay": may})
        found = pick(policies, "ValidatingAdmissionPolicy", "mizar-share-pods-limits")["spec"][
            "validations"
        ]
        return {one.get("message") or one["messageExpression"] for one in found}

    gone = sentences([]) - sentences([escape])
    assert gone and all(f"policies.sharePodsMay of Mizar can allow {escape}" in one for one in gone)
    every = chart.render(policies={"sharePodsMay": list(ESCAPES)})
    assert "mizar-share-pods-limits" not in {one["metadata"]["name"] for one in every}


def test_share_pods_set_none_of_the_variables_of_nvidias_runtime(default: list[Object]) -> None:
    """Each adds devices to a container that has cards: see `features` and `ImexChannelRequests` in
    NVIDIA's container toolkit; or reserves memory of them, see its apply-cuda-memory-limits."""
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-share-pods-limits")["spec"]
    (driver,) = [one for one in policy["variables"] if one["name"] == "driver"]
    (names,) = re.findall(r"e\.name\.matches\('(.*?)'\)", driver["expression"])
    devices = ("GDS", "MOFED", "GDRCOPY", "NVSWITCH", "IMEX_CHANNELS", "DRIVER_CAPABILITIES")
    for name in (*devices, "GPU_MEMORY_REQUEST", "GPU_MEMORY_LIMIT"):
        assert re.match(names, f"NVIDIA_{name}"), name


def test_annotations_are_checked_on_pods_that_share_cards_only(default: list[Object]) -> None:
    """Others may have them from values that a chart gives to all of its pods, which were created
    until this policy came."""
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-share-annotations")["spec"]
    assert (
        "object.metadata.labels['mizar.share/share-pod'] == 'true'"
        in (policy["matchConditions"][0]["expression"])
    )


def test_templates_are_warned_of_and_never_held_up(chart: Chart, default: list[Object]) -> None:
    """Also of templates that ask by an alias, which only their pods lose."""
    named = chart.render(webhook={"resourceNames": ["nvidia.com/vgpu"]})
    for part in ("share-templates-limits", "share-cronjobs-limits"):
        binding = pick(default, "ValidatingAdmissionPolicyBinding", f"mizar-{part}")["spec"]
        assert binding["validationActions"] == ["Warn"]
        policy = pick(named, "ValidatingAdmissionPolicy", f"mizar-{part}")["spec"]
        assert policy["failurePolicy"] == "Ignore"
        asks = [one for one in policy["matchConditions"] if one["name"] == "shares-or-borrows"]
        assert "k in ['nvidia.com/vgpu']" in asks[0]["expression"]
        pods = pick(named, "ValidatingAdmissionPolicy", "mizar-share-pods-limits")["spec"]
        assert len(policy["validations"]) == len(pods["validations"])
    allowed = chart.render(policies={"sharePodsMay": list(ESCAPES)})
    assert not [one for one in allowed if "limits" in one["metadata"]["name"]]


def test_share_pods_keep_off_the_agents_own_folders(chart: Chart) -> None:
    folders = {"stateDir": "/opt/mizar/", "kubeletDir": "/data/kubelet"}
    policy = pick(
        chart.render(nodeagent=folders), "ValidatingAdmissionPolicy", "mizar-share-pods-limits"
    )
    (paths,) = [one for one in policy["spec"]["variables"] if one["name"] == "folders"]
    for path in ("/opt/mizar", "/data/kubelet", "/var/lib/kubelet"):
        assert f"'{path}'" in paths["expression"]


def test_foreign_shares_are_told_of_as_the_values_say(chart: Chart, default: list[Object]) -> None:
    def actions(objects: list[Object]) -> dict[str, list[str]]:
        return {
            one["spec"]["policyName"]: one["spec"]["validationActions"]
            for one in objects
            if one["kind"] == "ValidatingAdmissionPolicyBinding"
            and "foreign-shares" in one["metadata"]["name"]
        }

    names = [f"mizar-foreign-shares{end}" for end in ("", "-templates", "-cronjobs")]
    assert actions(default) == {name: ["Warn"] for name in names}
    denied = chart.render(policies={"foreignShares": "Deny"})
    assert actions(denied) == {name: ["Deny"] for name in names}
    for name in names:
        policy = pick(denied, "ValidatingAdmissionPolicy", name)["spec"]
        assert policy["failurePolicy"] == "Ignore"


def test_a_name_that_pools_may_have_is_not_foreign(chart: Chart) -> None:
    objects = chart.render(webhook={"resourceNames": ["nvidia.com/gpumem"]})
    for end in ("", "-templates", "-cronjobs"):
        policy = pick(objects, "ValidatingAdmissionPolicy", f"mizar-foreign-shares{end}")["spec"]
        (foreign,) = [one for one in policy["variables"] if one["name"] == "foreign"]
        assert "'nvidia.com/gpumem'" not in foreign["expression"]
        assert "'nvidia.com/gpumem-percentage'" in foreign["expression"]


def test_resource_quotas_are_warned_of_and_never_held_up(default: list[Object]) -> None:
    name = "mizar-quota-names"
    binding = pick(default, "ValidatingAdmissionPolicyBinding", name)["spec"]
    assert (binding["policyName"], binding["validationActions"]) == (name, ["Warn"])
    assert pick(default, "ValidatingAdmissionPolicy", name)["spec"]["failurePolicy"] == "Ignore"


def test_of_aliases_only_those_that_are_translated_limit_nothing(
    chart: Chart, default: list[Object]
) -> None:
    def wrong(objects: list[Object]) -> str:
        spec = pick(objects, "ValidatingAdmissionPolicy", "mizar-quota-names")["spec"]
        return str({one["name"]: one["expression"] for one in spec["variables"]}["wrong"])

    assert "alias" not in wrong(default) and "sizes" not in wrong(default)
    named = chart.render(webhook={"resourceNames": ["nvidia.com/vgpu"]})
    assert "p.alias in ['nvidia.com/vgpu'] && k == 'requests.' + p.alias)" in wrong(named)
    assert "s.name in ['nvidia.com/vgpu'] && k == 'requests.' + s.name)" in wrong(named)


def test_policies_and_monitors_are_a_choice(chart: Chart) -> None:
    without = chart.render(policies={**dict.fromkeys(POLICIES, False), "foreignShares": "Allow"})
    assert not [one for one in without if "AdmissionPolicy" in one["kind"]]
    monitors = [
        one["metadata"]["name"]
        for one in chart.render(metrics={"monitors": True})
        if one["kind"] == "PodMonitor"
    ]
    assert monitors == ["mizar-operator", "mizar-webhook", "mizar-nodeagent"]


def test_all_figures_of_a_node_agent_name_its_node(chart: Chart) -> None:
    """An alert about the agent's device plugins names the node; the figures of the other programs
    belong to no node."""
    named = {
        one["metadata"]["name"]: [
            (rule["sourceLabels"], rule["targetLabel"])
            for endpoint in one["spec"]["podMetricsEndpoints"]
            for rule in endpoint.get("relabelings", ())
        ]
        for one in chart.render(metrics={"monitors": True})
        if one["kind"] == "PodMonitor"
    }
    assert named.pop("mizar-nodeagent") == [(["__meta_kubernetes_pod_node_name"], "node")]
    assert not any(named.values())


def test_the_uninstall_is_checked_by_hooks_that_go(chart: Chart, default: list[Object]) -> None:
    mine = [one for one in default if one["metadata"]["name"] == "mizar-uninstall"]
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert {one["kind"] for one in mine} == kinds
    for one in mine:
        notes = one["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-delete"
        assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert notes["helm.sh/hook-weight"] == ("1" if one["kind"] == "Job" else "0")
    job = pick(default, "Job", "mizar-uninstall")
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["backoffLimit"] == 0
    without = chart.render(uninstall={"check": False})
    assert not [one for one in without if "pre-delete" in str(one["metadata"])]


def test_the_job_that_checks_the_uninstall_may_only_read(default: list[Object]) -> None:
    assert rules(default, "uninstall") == [
        {
            "apiGroups": ["mizar.share"],
            "resources": ["gpuquotas", "shadowpods"],
            "verbs": ["list"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments"],
            "resourceNames": ["mizar-operator"],
            "verbs": ["get"],
        },
    ]


def test_the_check_of_the_uninstall_runs_as_the_operator_does(chart: Chart) -> None:
    scheduling = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "high",
    }
    objects = chart.render(
        operator=scheduling,
        image={"pullSecrets": [{"name": "regcred"}]},
        uninstall={"waitSeconds": 200},
    )
    job = pick(objects, "Job", "mizar-uninstall")["spec"]
    spec = job["template"]["spec"]
    assert {key: spec[key] for key in scheduling} == scheduling
    assert spec["imagePullSecrets"] == [{"name": "regcred"}]
    (container,) = spec["containers"]
    (operator,) = pick(objects, "Deployment", "mizar-operator")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == operator["image"]
    assert container["command"] == ["python", "-m", uninstall.__name__]
    found = read(UninstallSettings, [*container["args"], "--namespace=mizar-system"])
    assert (found.release, found.revision, found.deployment) == ("mizar", 1, "mizar-operator")
    assert found.wait == 200 < job["activeDeadlineSeconds"]


def test_of_a_check_of_the_uninstall_that_holds_only_the_job_is_a_hook(chart: Chart) -> None:
    """Of several hooks, Argo CD may take the Job for done before it has noticed it."""
    objects = chart.render(uninstall={"hold": True})
    hooks = [one for one in objects if "pre-delete" in str(one["metadata"])]
    assert [(one["kind"], one["metadata"]["name"]) for one in hooks] == [("Job", "mizar-uninstall")]
    mine = {one["kind"] for one in objects if one["metadata"]["name"] == "mizar-uninstall"}
    rights = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert mine == rights | {"Job"}


@pytest.mark.parametrize("hold", [False, True])
def test_a_check_of_the_uninstall_that_holds_never_counts_as_failed(
    chart: Chart, hold: bool
) -> None:
    """Argo CD may go on with a deletion after its hook has failed."""
    job = pick(chart.render(uninstall={"hold": hold}), "Job", "mizar-uninstall")["spec"]
    spec = job["template"]["spec"]
    assert ("activeDeadlineSeconds" in job) == (not hold)
    assert job["backoffLimit"] == (2**31 - 1 if hold else 0)
    assert spec["restartPolicy"] == ("OnFailure" if hold else "Never")
    assert spec["terminationGracePeriodSeconds"] == 1
    found = read(UninstallSettings, [*spec["containers"][0]["args"], "--namespace=mizar-system"])
    assert found.hold == hold


def test_read_access_for_users_is_what_the_values_say(chart: Chart) -> None:
    def names(objects: list[Object]) -> set[tuple[str, str]]:
        found = ((one["kind"], one["metadata"]["name"]) for one in objects)
        return {(kind, name) for kind, name in found if name in ("mizar-view", "mizar-pools")}

    view, pools = ("ClusterRole", "mizar-view"), ("ClusterRole", "mizar-pools")
    binding = ("ClusterRoleBinding", "mizar-pools")
    assert names(chart.render()) == {view, pools, binding}
    assert names(chart.render(aggregatedRoles=False)) == {pools, binding}
    assert names(chart.render(poolReaders=[])) == {view}
    found = pick(chart.render(poolReaders=["a", "b:c"]), *binding)
    assert [one["name"] for one in found["subjects"]] == ["a", "b:c"]


def test_images_may_have_other_names_and_digests(chart: Chart) -> None:
    own = {
        "operator": "mirror.example.com/mizar-operator@sha256:" + "a" * 64,
        "nodeagent": "mirror.example.com/mizar-agent@sha256:" + "b" * 64,
    }
    objects = chart.render(image=own)
    for kind, part in (("Deployment", "operator"), ("Deployment", "webhook"), ("Job", "uninstall")):
        spec = pick(objects, kind, f"mizar-{part}")["spec"]["template"]["spec"]
        assert {one["image"] for one in spec["containers"]} == {own["operator"]}
    spec = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    assert {one["image"] for one in spec["containers"]} == {own["nodeagent"]}


def test_shadow_pods_have_a_class_that_never_preempts(chart: Chart) -> None:
    def named(objects: list[Object]) -> str:
        return operator_settings(objects).pod_settings.priority_class

    default = chart.render()
    made = pick(default, "PriorityClass", named(default))
    assert named(default) == "mizar-shadow-pods"
    assert (made["value"], made["preemptionPolicy"]) == (1_000_000_000, "Never")
    assert made["globalDefault"] is False
    for values, name in (
        ({"create": False}, ""),
        ({"create": False, "name": "mine"}, "mine"),
        ({"name": "mine", "value": -5}, "mine"),
    ):
        objects = chart.render(shadowPods={"priorityClass": values})
        assert named(objects) == name
        classes = [one["value"] for one in objects if one["kind"] == "PriorityClass"]
        assert classes == ([-5] if "value" in values else [])


def test_the_class_of_shadow_pods_is_theirs_alone_if_the_chart_makes_it(chart: Chart) -> None:
    policy = "shadow-priority-class"

    def classes(**values: object) -> list[str]:
        return [
            re.findall(r"== '([^']+)'", one["spec"]["matchConditions"][0]["expression"])[0]
            for one in chart.render(**values)
            if one["kind"] == "ValidatingAdmissionPolicy"
            and one["metadata"]["name"] == f"mizar-{policy}"
        ]

    assert classes() == ["mizar-shadow-pods"]
    assert classes(shadowPods={"priorityClass": {"name": "mine"}}) == ["mine"]
    assert classes(shadowPods={"priorityClass": {"create": False, "name": "mine"}}) == []
    assert classes(policies={"shadowPods": False}) == []


def webhook_settings(objects: list[Object]) -> WebhookSettings:
    pod = pick(objects, "Deployment", "mizar-webhook")["spec"]["template"]["spec"]
    return read(WebhookSettings, [*pod["containers"][0]["args"], "--namespace=mizar-system"])


def test_cards_are_lent_where_the_installation_says_so(chart: Chart, default: list[Object]) -> None:
    assert not operator_settings(default).spot
    assert not webhook_settings(default).spot_settings.enabled
    lends = chart.render(spot={"enabled": True}, nodeagent={"hostPID": False})
    assert operator_settings(lends).spot
    found = webhook_settings(lends).spot_settings
    assert (found.enabled, found.priority_class) == (True, "mizar-spot-pods")
    made = pick(lends, "PriorityClass", found.priority_class)
    assert (made["value"], made["preemptionPolicy"]) == (-1000, "Never")
    assert pick(lends, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]["hostPID"]
    for values, name in (({"create": False}, ""), ({"create": False, "name": "mine"}, "mine")):
        objects = chart.render(spot={"enabled": True, "priorityClass": values})
        assert webhook_settings(objects).spot_settings.priority_class == name
        assert [one["metadata"]["name"] for one in objects if one["kind"] == "PriorityClass"] == [
            "mizar-shadow-pods"
        ]


def test_the_rules_of_lending_are_in_one_config_map(default: list[Object]) -> None:
    assert "data" not in pick(default, "ConfigMap", CONFIG_MAP), "an upgrade would take it away"
    for part, verbs in (("operator", ["get", "patch"]), ("nodeagent", ["get", "list", "watch"])):
        (rule,) = [one for one in rules(default, part) if "configmaps" in one["resources"]]
        assert (rule["resourceNames"], rule["verbs"]) == ([CONFIG_MAP], verbs)


def test_a_node_agent_disrupts_for_the_reasons_that_it_has(default: list[Object]) -> None:
    policy = pick(default, "ValidatingAdmissionPolicy", "mizar-nodeagent")["spec"]
    agents = [str(one) for one in SpotEvictionReason if one != SpotEvictionReason.QUOTA_RECLAIM]
    assert any(f"c.reason in {agents}" in one["expression"] for one in policy["validations"])


def test_another_release_in_another_namespace(chart: Chart) -> None:
    status, output = chart.run(
        "template", "gpus", "--namespace=infra", "--kube-version=1.36.0", "--skip-crds"
    )
    assert status == 0
    objects = parsed(output)
    found = {one["metadata"]["name"] for one in objects} - {CONFIG_MAP}
    assert all(name.startswith("gpus-") for name in found)
    policy = pick(objects, "ValidatingAdmissionPolicy", "gpus-nodeagent")
    (condition,) = policy["spec"]["matchConditions"]
    assert "system:serviceaccount:infra:gpus-nodeagent" in condition["expression"]


def test_old_clusters_are_refused(chart: Chart) -> None:
    status, output = chart.run("template", "mizar", "--kube-version=1.29.0")
    assert status != 0
    assert "kubeVersion" in output
