import os
from pathlib import Path

import pytest

from cluster.binaries import debian
from cluster.binaries.errors import CommandFailed, SetupError
from cluster.binaries.progress import Progress

QUERY = """#!/bin/sh
for package; do :; done
grep -qx "$package" {installed} && printf 'install ok installed'
"""
APT = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in *install*) printf '%s\\n' "$@" >> {installed};; esac
"""


class Machine:
    """A machine whose dpkg-query and apt-get are shell scripts over a list of packages."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.installed = folder / "installed"
        self.installed.write_text("gcc\nutil-linux\n")
        self.calls = folder / "calls"
        self.calls.touch()
        self.program("dpkg-query", QUERY)
        self.program("apt-get", APT)

    def program(self, name: str, text: str) -> None:
        file = self.programs / name
        file.write_text(text.format(installed=self.installed, calls=self.calls))
        file.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{machine.programs}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return machine


def ensure(*packages: str) -> None:
    debian.ensure(packages, Progress.silent())


def test_nothing_is_done_when_all_is_there(machine: Machine) -> None:
    ensure("gcc", "util-linux")
    assert machine.calls.read_text() == ""


def test_only_what_is_missing_is_installed_once(machine: Machine) -> None:
    ensure("gcc", "runc", "buildah", "runc")
    ensure("runc")
    update, install = machine.calls.read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("runc buildah") and "--no-install-recommends" in install


def test_a_failure_shows_what_apt_said(machine: Machine) -> None:
    machine.program("apt-get", "#!/bin/sh\necho E: Unable to locate package runc; exit 100\n")
    with pytest.raises(CommandFailed, match=r"exit status 100.*\nE: Unable to locate"):
        ensure("runc")


def test_without_root_the_user_is_told_what_to_type(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="type: sudo apt-get install runc buildah"):
        ensure("runc", "buildah")


def test_without_apt_the_packages_are_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SetupError, match="no apt-get: install what Debian's packages runc hold"):
        ensure("runc")
