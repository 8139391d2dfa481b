from pathlib import Path

from cluster import mounts
from cluster.layout import Layout


def test_what_a_node_would_hide_is_put_back(tmp_path: Path) -> None:
    own = {Path("/var"): tmp_path / "var", Path("/run"): tmp_path / "run"}
    found = mounts.covered(own, [Path("/var/cache/x"), Path("/usr/lib"), Path("/run/y")])
    assert found == {
        Path("/run/y"): tmp_path / "run/y",
        Path("/var/cache/x"): tmp_path / "var/cache/x",
    }


def test_nothing_is_mounted_before_mounts_are_private(tmp_path: Path) -> None:
    node = Layout("demo", tmp_path).node("node-1")
    node.make()
    mounts.prepare(node)
    plan = mounts.plan(node, [Path("/var/tmp")])
    assert plan[0] == ("none", "/", "", mounts.MS_PRIVATE | mounts.MS_REC, "")
    assert plan[-1][3] == mounts.MS_SHARED | mounts.MS_REC
    targets = [target for _, target, _, _, _ in plan]
    assert targets.index("/run") < targets.index("/var") < targets.index("/etc")
    assert str(node.var / "var/tmp") not in targets
    assert str(node.var / "tmp") in targets


def test_sysctls_of_the_machine_are_covered_by_what_the_kubelet_wants(tmp_path: Path) -> None:
    node = Layout("demo", tmp_path).node("node-1")
    node.make()
    mounts.prepare(node)
    assert (node.sysctls / "kernel/panic").read_text() == "10\n"
    covered = {target for _, target, _, _, _ in mounts.plan(node, [])}
    assert {f"/proc/sys/{name}" for name in mounts.existing_sysctls()} <= covered


def test_variable_folders_of_a_node_are_empty_but_for_what_it_needs(tmp_path: Path) -> None:
    node = Layout("demo", tmp_path).node("node-1")
    node.make()
    mounts.prepare(node)
    assert (node.var / "run").readlink() == Path("/run")
    assert not (node.var / "lib/containerd").exists()  # its images are put there as a whole
