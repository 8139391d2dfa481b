"""The operator's flags, and the variables that its pods have."""

import pytest

from mizar_kube.settings import SettingsRefused, read
from mizar_operator.manifests import PodSettings
from mizar_operator.settings import Settings


def test_defaults() -> None:
    settings = read(Settings, [])
    assert settings.pause_image == "registry.k8s.io/pause:3.10"
    assert settings.leader_election
    assert settings.metrics_port == 9464


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (
        ("MIZAR_PAUSE_IMAGE", "p:1"),
        ("MIZAR_SHADOW_PRIORITY_CLASS", "shadow-pods"),
        ("MIZAR_SHADOW_GRACE_SECONDS", "35"),
        ("MIZAR_SHADOW_CPU", "50m"),
        ("MIZAR_SHADOW_MEMORY", "128Mi"),
        ("MIZAR_SHADOW_LABELS", '{"team": "platform"}'),
        ("MIZAR_SHADOW_ANNOTATIONS", '{"example.com/inject": "false"}'),
        ("MIZAR_PORT", "7"),
        ("MIZAR_RESYNC_SECONDS", "2"),
        ("POD_NAME", "me"),
        ("POD_NAMESPACE", "ns"),
    ):
        monkeypatch.setenv(variable, value)
    settings = read(Settings, ["--no-leader-election"])
    assert (settings.pause_image, settings.identity, settings.namespace) == ("p:1", "me", "ns")
    assert (settings.metrics_port, settings.resync) == (7, 2)
    assert not settings.leader_election
    assert settings.pod_settings == PodSettings(
        "p:1",
        "shadow-pods",
        35,
        "50m",
        "128Mi",
        labels={"team": "platform"},
        annotations={"example.com/inject": "false"},
    )


def test_the_default_pool_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Settings, []).default_pool is None
    spec = read(Settings, ["--default-pool", '{"idleTimeoutSeconds": 5}']).default_pool
    assert spec == {"idleTimeoutSeconds": 5}
    monkeypatch.setenv("MIZAR_DEFAULT_POOL", "{}")
    assert read(Settings, []).default_pool == {}


def test_a_wrong_default_pool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_DEFAULT_POOL", "[]")
    with pytest.raises(SettingsRefused, match=r"DEFAULT_POOL|default-pool"):
        read(Settings, [])


def test_flags() -> None:
    settings = read(Settings, ["--pause-image", "q:2", "--port", "1", "--resync=9"])
    assert (settings.pause_image, settings.metrics_port, settings.resync) == ("q:2", 1, 9)
