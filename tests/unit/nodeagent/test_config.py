"""The node agent's settings, as its chart and users write them."""

from pathlib import Path

import pytest

from mizar_kube.setting_errors import SettingsRefused
from mizar_kube.settings import read, unknown_keys
from mizar_nodeagent.config import Config


def test_defaults() -> None:
    found = read(Config, ["--node-name=n"])
    assert found.podresources_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert found.metrics_port == 9465
    assert found.card_access.strategy == "EnvVar"


def test_the_chart_writes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nodeagent.yaml"
    path.write_text(
        """
        kubeletDir: /data/kubelet
        stateDir: /data/mizar
        metricsPort: 1234
        logLevel: WARNING
        cardAccess:
          strategy: Mounts
          devRoot: /run/simgpu/dev
          mounts:
            - {hostPath: /run/simgpu/state, containerPath: /run/simgpu/state, readOnly: false}
          env: {A_b: c}
        """
    )
    monkeypatch.setenv("NODE_NAME", "worker-1")
    found = read(Config, [f"--config={path}"])
    assert (found.node_name, found.log_level) == ("worker-1", "WARNING")
    assert found.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert found.card_access.dev_root == Path("/run/simgpu/dev")
    assert found.card_access.mounts[0].read_only is False
    assert found.card_access.env == {"A_b": "c"}


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--state-dir=relative", "--state-dir: it must be an absolute path on the node"),
        ("--card-access.strategy=Magic", r"--card-access\.strategy: it must be 'EnvVar', 'Mounts'"),
        ("--node-name=", "--node-name must be given"),
        ("--card-access.also=Magic", r"--card-access\.also: .*it must be 'EnvVar', 'Mounts'"),
        ("--ignored-xids=48,all", "--ignored-xids: 1: it must be a valid integer.* not 'all'"),
        ("--ignored-xids=0", "--ignored-xids: 0: it must be greater than or equal to 1, not 0"),
        ("--card-access.device-nodes=nvidiactl,/dev/nvidia-uvm", "device-nodes: 1: .* not /dev/x"),
        ("--card-access.device-nodes=../nvidiactl", "device-nodes: 0: .* not /dev/x"),
        ("--card-access.device-nodes=.", "device-nodes: 0: .* not /dev/x"),
        ("--card-access.device-nodes=nvidia**", "device-nodes: 0: .* not /dev/x"),
        ("--card-access.cdi-annotation-prefix=cdi.k8s.io", "--card-access.cdi-annotation-prefix"),
    ],
)
def test_what_is_wrong_is_named(flag: str, sentence: str) -> None:
    with pytest.raises(SettingsRefused, match=sentence):
        read(Config, ["--node-name=n", flag])


def test_the_same_by_flag_variable_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [
        "--fail-on-init-error",
        "--ignored-xids=48,79",
        "--card-access.gds",
        "--card-access.also=CDI,EnvVar",
    ]
    by_flag = read(Config, ["--node-name=n", *flags])
    path = tmp_path / "nodeagent.yaml"
    path.write_text(
        "failOnInitError: true\nignoredXids: [48, 79]\ncardAccess: {gds: true, also: [CDI, EnvVar]}"
    )
    by_file = read(Config, ["--node-name=n", f"--config={path}"])
    for name, value in (
        ("FAIL_ON_INIT_ERROR", "true"),
        ("IGNORED_XIDS", "[48, 79]"),
        ("CARD_ACCESS__GDS", "true"),
        ("CARD_ACCESS__ALSO", '["CDI", "EnvVar"]'),
    ):
        monkeypatch.setenv(f"MIZAR_{name}", value)
    by_variable = read(Config, ["--node-name=n"])
    assert by_flag.card_access == by_file.card_access == by_variable.card_access
    assert by_flag.card_access.also == ("CDI", "EnvVar") and by_flag.card_access.gds
    assert by_flag.fail_on_init_error and by_file.fail_on_init_error
    assert by_variable.fail_on_init_error
    assert {one.ignored_xids for one in (by_flag, by_file, by_variable)} == {(48, 79)}


def test_a_file_of_a_later_chart_ends_no_agent(tmp_path: Path) -> None:
    """An upgrade changes the agents' ConfigMap before it comes to this node."""
    path = tmp_path / "nodeagent.yaml"
    path.write_text("{later: 1, logLevel: DEBUG, cardAccess: {strategy: CDI, later: {a: b}}}")
    found = read(Config, ["--node-name=n", f"--config={path}"])
    assert (found.log_level, found.card_access.strategy) == ("DEBUG", "CDI")
    assert unknown_keys(found) == ["later", "cardAccess.later"]
    with pytest.raises(SystemExit):
        read(Config, ["--node-name=n", "--later=1"])


def test_annotations_are_not_given_by_nri() -> None:
    flags = ["--card-access.strategy=Auto", "--card-access.also=CDIAnnotations"]
    with pytest.raises(SettingsRefused, match="use CDI in `also` instead of CDIAnnotations"):
        read(Config, ["--node-name=n", *flags])


def test_device_nodes_are_the_drivers_unless_they_are_set_apart() -> None:
    flags = ["--node-name=n", "--driver-root=/run/nvidia/driver"]
    assert read(Config, flags).access.dev_root == Path("/run/nvidia/driver/dev")
    assert read(Config, [*flags, "--card-access.dev-root=/dev"]).access.dev_root == Path("/dev")
    assert read(Config, ["--node-name=n"]).access.dev_root == Path("/dev")
