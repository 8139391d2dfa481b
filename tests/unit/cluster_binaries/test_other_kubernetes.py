"""Another Kubernetes than the pinned one is built from a module that is written for it."""

from pathlib import Path

import pytest

from cluster.binaries.components import SOURCES
from cluster.binaries.errors import SetupError, SourceRefused
from cluster.binaries.folder import kubernetes_minor
from cluster.binaries.other_kubernetes import main_program, module, wanted

ITS_OWN = """\
module k8s.io/kubernetes

go 1.22.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""


def test_its_parts_have_the_same_version() -> None:
    text = module("1.30.14", ITS_OWN)
    assert text.startswith("module mizar.share/tests/cluster/kubernetes\n\ngo 1.22.0\n")
    assert "require k8s.io/kubernetes v1.30.14\n" in text
    for part in ("api", "client-go"):
        assert f"\tk8s.io/{part} => k8s.io/{part} v0.30.14\n" in text


def test_a_module_without_parts_is_an_error() -> None:
    with pytest.raises(SetupError, match=r"1\.30\.14 is not as expected"):
        module("1.30.14", "module k8s.io/kubernetes\n\ngo 1.22.0\n")


def test_the_program_has_no_etcd_and_a_kubelet_of_either_form() -> None:
    text = main_program((SOURCES / "kubernetes" / "main.go").read_text())
    assert "etcdmain" not in text and 'name == "etcd"' not in text
    assert '"kubelet": func() *cobra.Command { return kubeletCommand() },' in text
    assert "func kubeletCommand() *cobra.Command {" in text and '"reflect"' in text
    with pytest.raises(SetupError):
        main_program("package main\n")


@pytest.mark.parametrize("version", ["1.30", "v1.30.14", "latest", "1.30.14; rm", "2.0.0"])
def test_what_is_no_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_KUBERNETES", version)
    with pytest.raises(SetupError, match="write it as in"):
        wanted()


def test_a_folder_beside_a_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_KUBERNETES", "1.30.14")
    assert wanted() == "1.30.14"
    monkeypatch.setenv("MIZAR_K8S_BIN_DIR", "/opt/kubernetes")
    with pytest.raises(SetupError, match="unset one"):
        wanted()
    monkeypatch.setenv("MIZAR_KUBERNETES", "")
    assert wanted() is None


@pytest.mark.parametrize(("says", "minor"), [("Kubernetes v1.30.14", 30), ("Kubernetes v1.9.0", 9)])
def test_a_kubelet_says_its_version(tmp_path: Path, says: str, minor: int) -> None:
    assert kubernetes_minor(program(tmp_path, says)) == minor


def test_what_is_no_kubelet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match=r"is etcd 3\.6, no Kubernetes 1\.N"):
        kubernetes_minor(program(tmp_path, "etcd 3.6"))


def program(folder: Path, says: str) -> Path:
    """A program that prints this."""
    path = folder / "kubelet"
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)
    return path
