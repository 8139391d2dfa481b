"""Tries the sources of each component in turn and puts what they give into one folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.binaries import (
    cache,
    debian,
    folder,
    gobuild,
    hosts,
    other_containerd,
    other_kubernetes,
    release,
)
from cluster.binaries.components import ALL, COMPONENTS, RUNC, Component, Host
from cluster.binaries.errors import NotAvailable, SetupError
from cluster.binaries.progress import Progress

PROBE_LIMIT = 5.0  # seconds for all hosts together to show that they are there


@dataclass(frozen=True)
class Binaries:
    """A folder that has every program that was asked for, by its usual name."""

    dir: Path

    def path(self, name: str) -> Path:
        """The program `name`; KeyError if it was not asked for."""
        program = self.dir / name
        if not program.exists():
            raise KeyError(f"{name} is not among the programs in {self.dir}")
        return program


def ensure(
    progress: Progress,
    needed: Iterable[str] = ALL,
    folders: Mapping[str, Path] | None = None,
) -> Binaries:
    """Make the programs `needed` available; minutes the first time, no time later.

    `folders` (component -> folder) goes before what the environment names. SetupError says
    what to do if a program cannot be had.
    """
    wanted = set(needed)
    if unknown := wanted - set(ALL):
        raise ValueError(f"unknown programs: {', '.join(sorted(unknown))}")
    components = [one for one in COMPONENTS if wanted.intersection(one.programs)]
    sources = _Sources(progress, folders or {})
    programs = {
        name: place / name
        for component, place in sources.places(components).items()
        for name in component.programs
    }
    programs |= _others(wanted, progress)
    if RUNC in wanted:
        programs[RUNC] = _runc(progress)
    return Binaries(_linked(programs))


def _others(needed: set[str], progress: Progress) -> dict[str, Path]:
    """Those of the programs `needed` of which the environment names another version."""
    found: dict[str, Path] = {}
    version = other_kubernetes.wanted()
    if version and needed.intersection(other_kubernetes.PROGRAMS):
        found |= other_kubernetes.ensure_kubernetes(version, progress)
    version = other_containerd.wanted()
    if version and needed.intersection(other_containerd.PINNED.programs):
        found |= other_containerd.ensure_containerd(version, progress)
    return found


def at_hand(program: str) -> Path | None:
    """The program, if it is there without a download or a build; None otherwise."""
    (component,) = (one for one in COMPONENTS if program in one.programs)
    place = _Sources(Progress.silent(), {}).at_hand(component)
    return place / program if place else None


@dataclass
class _Sources:
    """One pass over the components; hosts are asked at most once in it."""

    progress: Progress
    folders: Mapping[str, Path]
    silent: dict[Host, str] | None = field(default=None, init=False)

    def places(self, components: list[Component]) -> dict[Component, Path]:
        """Where the programs of each component are."""
        here = {one: self.at_hand(one) for one in components}
        absent = [one for one, place in here.items() if place is None]
        if absent:
            self._ask_hosts(absent)
        return {one: place or self._get(one) for one, place in here.items()}

    def at_hand(self, component: Component) -> Path | None:
        """The folder of its programs, if they need not be got first."""
        named = self.folders.get(component.name) or folder.named(component)
        if named:
            folder.check(component, named, self.progress)
            return named
        entries = (_store() / name for name in (_release_name(component), _build_name(component)))
        return next((entry for entry in entries if entry.exists()), None)

    def _get(self, component: Component) -> Path:
        try:
            return self._released(component)
        except NotAvailable as why:
            self.progress.say(f"{why}: building {component.title} instead")
        return cache.entry(
            _store(),
            _build_name(component),
            lambda into: gobuild.build(component, into, self.progress),
            self.progress,
        )

    def _released(self, component: Component) -> Path:
        for one in component.releases:
            if reason := (self.silent or {}).get(one.host):
                raise NotAvailable(f"{hosts.url(one.host)} cannot be reached ({reason})")
        return cache.entry(
            _store(),
            _release_name(component),
            lambda into: release.fetch(component, into, self.progress),
            self.progress,
        )

    def _ask_hosts(self, components: list[Component]) -> None:
        asked = {one.host for component in components for one in component.releases}
        with self.progress.step("looking for official releases"):
            self.silent = hosts.silent(asked, PROBE_LIMIT)


def _store() -> Path:
    return cache.root() / "programs"


def _release_name(component: Component) -> str:
    return f"{component.name}-{component.version}-release"


def _build_name(component: Component) -> str:
    return f"{component.name}-{component.version}-{component.build.digest()}"


def _runc(progress: Progress) -> Path:
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which("runc", path=path)
    if found is None:
        debian.ensure(["runc"], progress)
        found = shutil.which("runc", path=path)
    if found is None:
        raise SetupError("Debian's package runc is installed, but there is no program runc")
    return Path(found).absolute()


def _linked(programs: Mapping[str, Path]) -> Path:
    """A folder of symlinks to `programs`, one for each different set of them."""
    listing = "\n".join(f"{name} {program}" for name, program in sorted(programs.items()))
    name = f"set-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"

    def fill(into: Path) -> None:
        for program, target in programs.items():
            (into / program).symlink_to(target)

    return cache.entry(_store(), name, fill)
