"""The versions in the table are those that go.mod pins."""

import re
from pathlib import Path

import pytest

from cluster.binaries import components
from cluster.binaries.components import COMPONENTS, SOURCES

MODULES = {
    "kubernetes": {
        "k8s.io/kubernetes": components.KUBERNETES,
        "go.etcd.io/etcd/server/v3": components.ETCD,
    },
    "containerd": {"github.com/containerd/containerd/v2": components.CONTAINERD},
    "cni": {"github.com/containernetworking/plugins": components.CNI},
    "helm": {"helm.sh/helm/v3": components.HELM},
    # As a module, Prometheus 3.13.5 is 0.313.5.
    "promtool": {"github.com/prometheus/prometheus": components.PROMETHEUS.replace("3.", "0.3", 1)},
}


@pytest.mark.parametrize("name", MODULES)
def test_versions_are_those_of_go_mod(name: str) -> None:
    text = (SOURCES / name / "go.mod").read_text()
    for module, version in MODULES[name].items():
        assert re.search(rf"^\s*{re.escape(module)} v{re.escape(version)}\b", text, re.MULTILINE)


def test_all_of_kubernetes_modules_have_one_version() -> None:
    text = (SOURCES / "kubernetes" / "go.mod").read_text()
    found = re.findall(r"=> k8s.io/\S+ (\S+)", text)
    assert len(found) > 30
    assert set(found) == {f"v0.{components.KUBERNETES.partition('.')[2]}"}


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda one: one.name)
def test_everything_is_pinned_by_hashes(component: components.Component) -> None:
    assert (SOURCES / component.build.module / "go.sum").stat().st_size > 1000


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda one: one.name)
def test_releases_hold_exactly_the_programs(component: components.Component) -> None:
    released = [name for one in component.releases for name in (*one.members, one.program) if name]
    assert sorted(released) == sorted(component.programs)


def test_the_go_of_the_toolchain_is_pinned() -> None:
    sums = (SOURCES / "toolchain" / "go.sum").read_text()
    for arch in ("amd64", "arm64"):
        assert f"golang.org/toolchain v0.0.1-go{components.GO}.linux-{arch} h1:" in sums


def test_a_digest_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "helm"
    module.mkdir()
    (module / "go.sum").write_text("one")
    monkeypatch.setattr(components, "SOURCES", tmp_path)
    build = next(one.build for one in COMPONENTS if one.name == "helm")
    before = build.digest()
    (module / "go.sum").write_text("two")
    assert build.digest() != before
