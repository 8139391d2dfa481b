from pathlib import Path

import pytest

from cluster import cgroups
from cluster.cgroups import Hierarchy

HYBRID = """\
24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
26 24 0:24 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
27 24 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
28 1 0:25 / /mnt/elsewhere rw shared:1 - cgroup2 cgroup2 rw
"""
UNIFIED = "25 1 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_hierarchies_are_read_from_mountinfo() -> None:
    found = cgroups.hierarchies(HYBRID)
    assert [one.mountpoint.name for one in found] == ["cpu", "cpuset", "unified"]
    assert cgroups.uses_v1(found)
    assert cgroups.hierarchies(UNIFIED) == [Hierarchy(Path("/sys/fs/cgroup"), unified=True)]
    assert not cgroups.uses_v1(cgroups.hierarchies(UNIFIED))


@pytest.fixture
def v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Hierarchy]:
    """A cpu and a cpuset hierarchy, made of plain folders."""
    found = [Hierarchy(tmp_path / name, unified=False) for name in ("cpu", "cpuset")]
    for hierarchy in found:
        hierarchy.mountpoint.mkdir()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: found)
    return found


def test_each_node_has_a_cgroup_in_each_v1_hierarchy(v1: list[Hierarchy]) -> None:
    cgroups.create("demo", ["node-1", "node-2"])
    for hierarchy in v1:
        assert (hierarchy.mountpoint / "mizar-cluster-demo" / "node-2").is_dir()
    cgroups.remove("demo")
    assert cgroups.existing("demo") == []


def test_the_v2_hierarchy_of_a_hybrid_machine_is_left_alone(
    v1: list[Hierarchy], tmp_path: Path
) -> None:
    (tmp_path / "unified").mkdir()
    v1.append(Hierarchy(tmp_path / "unified", unified=True))
    cgroups.create("demo", ["node-1"])
    assert not list((tmp_path / "unified").iterdir())


def test_only_the_clusters_own_cgroups_are_removed(v1: list[Hierarchy]) -> None:
    cgroups.create("demo", ["node-1"])
    cgroups.create("demo-2", ["node-1"])
    cgroups.remove("demo")
    assert len(cgroups.existing("demo-2")) == len(v1)


def test_a_nodes_cgroups_are_renewed_beside_the_others(v1: list[Hierarchy]) -> None:
    cgroups.create("demo", ["node-1", "node-2"])
    for hierarchy in v1:
        for node in ("node-1", "node-2"):
            (hierarchy.mountpoint / "mizar-cluster-demo" / node / "kubepods").mkdir()
    cgroups.renew("demo", "node-2")
    for hierarchy in v1:
        top = hierarchy.mountpoint / "mizar-cluster-demo"
        assert (top / "node-1" / "kubepods").is_dir()
        assert (top / "node-2").is_dir() and not (top / "node-2" / "kubepods").exists()


def test_v2_passes_its_controllers_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, str]] = []
    monkeypatch.setattr(cgroups, "_try_write", lambda file, text: written.append((file, text)))
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [Hierarchy(tmp_path, unified=True)])
    for folder in (tmp_path, tmp_path / "mizar-cluster-demo"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory\n")
    cgroups.create("demo", ["node-1"])
    assert written == [
        (folder / "cgroup.subtree_control", f"+{controller}")
        for folder in (tmp_path, tmp_path / "mizar-cluster-demo")
        for controller in ("cpu", "memory")
    ]
