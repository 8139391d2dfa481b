from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.binaries import gobuild, other_containerd, other_kubernetes, sources
from cluster.binaries.components import ARCH, COMPONENTS, Component
from cluster.binaries.errors import SourceRefused
from cluster.binaries.progress import Progress

from .conftest import ReleaseServer

Said = list[str]


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the components that were built; the builds are not real ones."""
    names: list[str] = []

    def build(component: Component, into: Path, progress: Progress) -> None:
        names.append(component.name)
        fill(into, component)

    monkeypatch.setattr(gobuild, "build", build)
    return names


def fill(folder: Path, component: Component) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in component.programs:
        (folder / name).write_text(f"#!/bin/sh\necho v{component.version}\n")
        (folder / name).chmod(0o755)


def kubelet(said: Said) -> Path:
    binaries = sources.ensure(Progress(write=said.append), ["kubelet"])
    return binaries.path("kubelet").resolve()


def test_a_named_folder_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, kubernetes: Component
) -> None:
    fill(tmp_path / "mine", kubernetes)
    monkeypatch.setenv("MIZAR_K8S_BIN_DIR", str(tmp_path / "mine"))
    assert kubelet(said) == tmp_path / "mine" / "kubelet"
    assert said == []


def test_what_is_at_hand_needs_no_host_and_no_build(
    server: ReleaseServer, built: list[str], kubernetes: Component
) -> None:
    assert sources.at_hand("kubelet") is None
    assert server.asked == [] and built == []
    server.publish(kubernetes)
    found = sources.ensure(Progress.silent(), ["kubelet"]).path("kubelet")
    assert sources.at_hand("kubelet") == found.resolve()


def test_a_folder_may_be_an_argument(tmp_path: Path, kubernetes: Component) -> None:
    fill(tmp_path / "mine", kubernetes)
    folders = {"kubernetes": tmp_path / "mine"}
    binaries = sources.ensure(Progress.silent(), ["etcd"], folders)
    assert binaries.path("etcd").resolve() == tmp_path / "mine" / "etcd"


def test_another_version_in_a_named_folder_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, kubernetes: Component
) -> None:
    fill(tmp_path / "mine", kubernetes)
    (tmp_path / "mine" / "kubelet").write_text("#!/bin/sh\necho Kubernetes v1.34.1\n")
    monkeypatch.setenv("MIZAR_K8S_BIN_DIR", str(tmp_path / "mine"))
    kubelet(said)
    assert "".join(said).strip().endswith("kubelet is Kubernetes v1.34.1, not 1.36.3")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda program: program.unlink(), "lacks kubelet"),
        (lambda program: program.chmod(0o644), "lacks kubelet"),
        (lambda program: program.write_text("#!/bin/sh\nexit 4"), "ends with status 4"),
        (lambda program: program.write_text("no program"), "does not run here"),
    ],
)
def test_a_bad_folder_is_refused_with_a_way_out(
    spoil: Callable[[Path], None],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kubernetes: Component,
) -> None:
    fill(tmp_path / "mine", kubernetes)
    spoil(tmp_path / "mine" / "kubelet")
    monkeypatch.setenv("MIZAR_K8S_BIN_DIR", str(tmp_path / "mine"))
    with pytest.raises(SourceRefused, match=complaint):
        kubelet([])


def test_the_release_goes_before_a_build_and_is_kept(
    server: ReleaseServer, built: list[str], said: Said, kubernetes: Component
) -> None:
    server.publish(kubernetes)
    first = kubelet(said)
    assert first.parent.name == "kubernetes-1.36.3-release"
    server.asked.clear()
    assert kubelet(said) == first
    assert server.asked == [] and built == []


def test_a_bad_release_leads_to_a_build_which_is_kept(
    server: ReleaseServer, built: list[str], said: Said, kubernetes: Component
) -> None:
    server.publish(kubernetes)
    server.published[f"/release/v1.36.3/bin/linux/{ARCH}/kubelet"] += b"x"
    first = kubelet(said)
    assert kubelet(said) == first
    assert built == ["kubernetes"]
    assert "it is not used: building Kubernetes 1.36.3 and etcd 3.6.8 instead" in "".join(said)


def test_an_unreachable_host_leads_to_a_build(
    hanging: str, built: list[str], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIZAR_GITHUB_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(sources, "PROBE_LIMIT", 0.2)
    kubelet(said)
    assert built == ["kubernetes"]
    assert f"{hanging} cannot be reached" in "".join(said)


def test_changed_pins_are_built_anew(
    server: ReleaseServer, built: list[str], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubelet(said)
    monkeypatch.setattr("cluster.binaries.components.GO", "1.99")
    assert kubelet(said) != first
    assert built == ["kubernetes"] * 2


def test_all_programs_lie_in_one_folder(server: ReleaseServer, built: list[str]) -> None:
    wanted = ["kubelet", "containerd", "helm", "bridge", "promtool"]
    binaries = sources.ensure(Progress.silent(), wanted)
    assert {binaries.path(name).parent for name in wanted} == {binaries.dir}
    assert built == [component.name for component in COMPONENTS]


def test_an_unknown_program_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="unknown programs: kublet"):
        sources.ensure(Progress.silent(), ["kublet"])


def test_a_program_that_was_not_asked_for_is_a_mistake(
    server: ReleaseServer, built: list[str]
) -> None:
    with pytest.raises(KeyError, match="helm"):
        sources.ensure(Progress.silent(), ["bridge"]).path("helm")


def test_another_version_of_kubernetes_comes_with_the_usual_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubernetes: Component
) -> None:
    fill(tmp_path / "mine", kubernetes)
    built: list[str] = []

    def build(version: str, into: Path, progress: Progress) -> None:
        built.append(version)
        fill(into, kubernetes)

    monkeypatch.setattr(other_kubernetes, "_build", build)
    monkeypatch.setenv("MIZAR_KUBERNETES", "1.30.14")
    folders = {"kubernetes": tmp_path / "mine"}
    sources.ensure(Progress.silent(), ["etcd"], folders)
    assert built == []
    for _ in range(2):
        binaries = sources.ensure(Progress.silent(), ["kubelet", "etcd"], folders)
    assert built == ["1.30.14"]
    assert binaries.path("etcd").resolve() == tmp_path / "mine" / "etcd"
    assert "other-kubernetes-1.30.14" in str(binaries.path("kubelet").resolve())


def test_another_version_of_containerd_comes_beside_the_usual_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build(version: str, into: Path, progress: Progress) -> None:
        built.append(version)
        fill(into, other_containerd.PINNED)

    monkeypatch.setattr(other_containerd, "_build", build)
    monkeypatch.setenv("MIZAR_CONTAINERD", "1.7.35")
    fill(tmp_path / "mine", other_containerd.PINNED)
    folders = {"containerd": tmp_path / "mine"}
    for _ in range(2):
        binaries = sources.ensure(Progress.silent(), ["containerd", "ctr"], folders)
    assert built == ["1.7.35"]
    for program in ("containerd", "ctr"):
        assert "other-containerd-1.7.35" in str(binaries.path(program).resolve())
