"""Another containerd than the pinned one is built from that version's own module."""

from pathlib import Path

import pytest

from cluster.binaries import folder, other_containerd
from cluster.binaries.errors import SetupError, SourceRefused


@pytest.mark.parametrize("version", ["2.1", "v2.1.9", "latest", "2.1.9; rm", "3.0.0"])
def test_what_is_no_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_CONTAINERD", version)
    with pytest.raises(SetupError, match="write it as in"):
        other_containerd.wanted()


def test_a_folder_beside_a_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_CONTAINERD", "1.7.35")
    assert other_containerd.wanted() == "1.7.35"
    monkeypatch.setenv("MIZAR_CONTAINERD_BIN_DIR", "/opt/containerd")
    with pytest.raises(SetupError, match="unset one"):
        other_containerd.wanted()
    monkeypatch.setenv("MIZAR_CONTAINERD", "")
    assert other_containerd.wanted() is None


def test_a_module_names_its_major_version_from_2_on() -> None:
    assert other_containerd.module("1.7.35") == "github.com/containerd/containerd"
    assert other_containerd.module("2.1.9") == "github.com/containerd/containerd/v2"


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.35 ", (1, 7)),
        ("containerd github.com/containerd/containerd/v2 v2.0.14 abc", (2, 0)),
        ("containerd github.com/containerd/containerd/v2 2.10.0", (2, 10)),
    ],
)
def test_a_containerd_says_its_version(tmp_path: Path, says: str, version: tuple[int, int]) -> None:
    assert folder.containerd_version(program(tmp_path, says)) == version


def test_what_is_no_containerd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="is crio, no containerd"):
        folder.containerd_version(program(tmp_path, "crio"))


def program(where: Path, says: str) -> Path:
    """A program that prints this."""
    path = where / "containerd"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path
