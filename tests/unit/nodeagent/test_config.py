"""The configuration file: defaults, the environment, and errors that say which key is wrong."""

from pathlib import Path

import pytest

from mizar_nodeagent import config
from mizar_nodeagent.errors import ConfigRefused


def test_defaults() -> None:
    found = config.parse({"nodeName": "n"}, {}, "test")
    assert found.podresources_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert found.metrics_port == 9465
    assert found.card_access.strategy == "EnvVar"


def test_the_chart_writes_what_is_read(tmp_path: Path) -> None:
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
          env: {A: b}
        """
    )
    found = config.load(path, {"NODE_NAME": "worker-1"})
    assert (found.node_name, found.log_level) == ("worker-1", "WARNING")
    assert found.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert found.card_access.mounts[0].read_only is False


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "set nodeName"),
        ("nodeName: n\nmetricsPort: 99999", "metricsPort"),
        ("nodeName: n\nstateDir: relative", "must be an absolute path"),
        ("nodeName: n\ncardAccess: {strategy: Magic}", r"cardAccess\.strategy"),
        ("nodeName: n\nnodName: m", "nodName"),
        ("- a", "keys and values"),
        ("{", "cannot read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "nodeagent.yaml"
    path.write_text(text)
    with pytest.raises(ConfigRefused, match=sentence):
        config.load(path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"missing\.yaml"):
        config.load(tmp_path / "missing.yaml", {})
