import zipfile
from pathlib import Path

import pytest

from cluster.binaries import debian, toolchain
from cluster.binaries.components import GO
from cluster.binaries.progress import Progress
from cluster.binaries.toolchain import parse, required, unpack, version_of

PREFIX = "golang.org/toolchain@v0.0.1-go1.26.8.linux-amd64"


def go_program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("older", "newer"),
    [("1.19.8", "1.26"), ("1.26rc1", "1.26"), ("1.26.0", "1.26.8"), ("1.9.1", "1.10")],
)
def test_versions_are_ordered(older: str, newer: str) -> None:
    assert parse(older) < parse(newer)


def test_the_pinned_go_is_new_enough() -> None:
    assert parse(GO) >= required() >= (1, 26, 0)


def test_a_go_says_its_version(tmp_path: Path) -> None:
    assert version_of(go_program(tmp_path / "go", "1.26.8")) == (1, 26, 8)
    assert version_of(tmp_path / "absent") == (0,)


def test_a_new_go_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (go_program(tmp_path / v / "go", v) for v in ("1.19.8", "1.99.0"))
    monkeypatch.setattr(toolchain, "_candidates", lambda: [old, new])
    assert toolchain.find(Progress.silent()) == new


def test_an_old_go_downloads_a_new_one(
    tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = go_program(tmp_path / "go", "1.19.8")
    used: list[Path] = []

    def module_zip(go: Path) -> Path:
        used.append(go)
        return module(tmp_path / "go.zip")

    monkeypatch.setattr(toolchain, "_candidates", lambda: [old])
    monkeypatch.setattr(toolchain, "_module_zip", module_zip)
    go = toolchain.find(Progress.silent())
    assert go == toolchain.find(Progress.silent())
    assert used == [old]
    assert go.read_text() == "bin/go"


def test_without_any_go_debian_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Path] = []

    def ensure(packages: list[str], progress: Progress) -> None:
        assert packages[0] == "golang-go"
        installed.append(go_program(tmp_path / "go", "1.19.8"))

    monkeypatch.setattr(debian, "ensure", ensure)
    monkeypatch.setattr(toolchain, "_candidates", lambda: list(installed))
    monkeypatch.setattr(toolchain, "_module_zip", lambda go: module(tmp_path / "go.zip"))
    assert toolchain.find(Progress.silent()).read_text() == "bin/go"


def module(archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("VERSION", "bin/go", "pkg/tool/linux_amd64/compile", "src/_go.mod"):
            file.writestr(f"{PREFIX}/{name}", name)
    return archive


def test_unpacking_marks_programs_and_restores_go_mod(tmp_path: Path) -> None:
    unpack(module(tmp_path / "go.zip"), tmp_path / "go")
    files = [path for path in (tmp_path / "go").rglob("*") if path.is_file()]
    programs = {str(p.relative_to(tmp_path / "go")) for p in files if p.stat().st_mode & 0o100}
    assert programs == {"bin/go", "pkg/tool/linux_amd64/compile"}
    assert (tmp_path / "go" / "src" / "go.mod").exists()
