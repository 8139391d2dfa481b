"""The node agent's settings, as its chart and users write them."""

from pathlib import Path

import pytest

from mizar_kube.setting_errors import SettingsRefused
from mizar_kube.settings import read
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
    ],
)
def test_what_is_wrong_is_named(flag: str, sentence: str) -> None:
    with pytest.raises(SettingsRefused, match=sentence):
        read(Config, ["--node-name=n", flag])
