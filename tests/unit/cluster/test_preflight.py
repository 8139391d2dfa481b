import contextlib
import os
from pathlib import Path

import pytest

from cluster import preflight
from cluster.errors import ClusterError


def process(folder: Path, *links: str) -> Path:
    """What /proc shows of a process with these files open."""
    (folder / "fd").mkdir(parents=True)
    for number, link in enumerate(links):
        (folder / "fd" / str(number)).symlink_to(link)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="root's processes are counted")
def test_inotify_instances_are_counted(tmp_path: Path) -> None:
    entries = [
        process(tmp_path / "1", "anon_inode:inotify", "/dev/null", "anon_inode:inotify"),
        process(tmp_path / "2", "anon_inode:[eventpoll]"),
        tmp_path / "ended",
    ]
    assert preflight.watchers_in_use(entries) == 2


def test_a_crowded_machine_is_refused_with_what_to_do() -> None:
    preflight.require_watchers(nodes=2, used=90, limit=128)
    with pytest.raises(ClusterError, match=r"sysctl fs\.inotify\.max_user_instances=1024"):
        preflight.require_watchers(nodes=2, used=100, limit=128)


def test_missing_programs_are_named_with_their_packages() -> None:
    preflight.require_tools({"sh": "dash"})
    with pytest.raises(ClusterError, match="missing: no-such-tool; run `apt-get install a-pack`"):
        preflight.require_tools({"sh": "dash", "no-such-tool": "a-pack"})


def test_others_than_root_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="as root"):
        preflight.check(nodes=1)


@pytest.mark.parametrize("loads", [True, False])
def test_the_overlay_module_is_loaded_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    filesystems, asked = tmp_path / "filesystems", tmp_path / "asked"
    filesystems.write_text("nodev\ttmpfs\n\text4\n")
    modprobe = tmp_path / "modprobe"
    modprobe.write_text(f'#!/bin/sh\necho "$@" >{asked}\nexit {0 if loads else 1}\n')
    modprobe.chmod(0o755)
    monkeypatch.setattr(preflight, "_PATH", str(tmp_path))
    expected = contextlib.nullcontext() if loads else pytest.raises(ClusterError, match="overlay")
    with expected:
        preflight.require_overlay(filesystems)
    assert asked.read_text() == "--quiet overlay\n"


def test_a_kernel_that_has_overlays_is_left_alone(tmp_path: Path) -> None:
    filesystems = tmp_path / "filesystems"
    filesystems.write_text("nodev\toverlay\n")
    preflight.require_overlay(filesystems)
