"""Flags win over the environment, which wins over the defaults."""

from mizar_operator.settings import DEFAULT_PAUSE_IMAGE, parse


def test_defaults() -> None:
    settings = parse([], {})
    assert settings.pause_image == DEFAULT_PAUSE_IMAGE
    assert settings.leader_election


def test_environment() -> None:
    environ = {"MIZAR_PAUSE_IMAGE": "p:1", "POD_NAME": "me", "POD_NAMESPACE": "ns"}
    settings = parse(["--no-leader-election"], environ)
    assert (settings.pause_image, settings.identity, settings.namespace) == ("p:1", "me", "ns")
    assert not settings.leader_election


def test_flags() -> None:
    settings = parse(["--pause-image", "q:2", "--port", "1"], {"MIZAR_PAUSE_IMAGE": "p:1"})
    assert (settings.pause_image, settings.port) == ("q:2", 1)
