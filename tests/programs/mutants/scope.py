"""What is mutated, and by which of the fast tests it should be noticed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class UnknownModule(Exception):
    """Asked for what no package here has."""


@dataclass(frozen=True)
class Package:
    """Modules that are judged together. Patterns and folders are relative to the repository."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """Its modules, sorted."""
        found = {path for pattern in self.modules for path in ROOT.glob(pattern)}
        return sorted(path for path in found if path.name != "__init__.py")


_CORE = tuple(
    f"core/mizar_core/{name}.py"
    for name in ("carve", "names", "preferred_allocation", "time_slicing")
)
_OPERATOR = tuple(
    f"operator/mizar_operator/{name}.py"
    for name in (
        *("apply", "delete_guard", "reconcile"),
        *("shadow_creation", "shadow_deletion", "status_writer"),
    )
)
_WEBHOOK = tuple(
    f"operator/mizar_operator/webhook/{name}.py"
    for name in ("pod_review", "pod_specs", "quota_review", "resource_names", "reviewer")
)
_AGENT = tuple(
    f"nodeagent/mizar_nodeagent/{name}/*.py" for name in ("planning", "container", "audit")
)
_PLANS = ("tests/unit/core", "tests/unit/operator", "tests/stateful", "tests/simulation")

PACKAGES = (
    Package("core/planning", ("core/mizar_core/planning/*.py",), (*_PLANS, "tests/property")),
    Package(
        "core",
        _CORE,
        (*_PLANS, "tests/property", "tests/unit/nodeagent", "tests/unit/webhook"),
    ),
    Package(
        "nodeagent",
        (*_AGENT, "nodeagent/mizar_nodeagent/plugin/*.py"),
        ("tests/unit/nodeagent",),
    ),
    Package("operator", _OPERATOR, ("tests/unit/operator", "tests/stateful", "tests/simulation")),
    Package("webhook", _WEBHOOK, ("tests/unit/webhook",)),
)


@dataclass(frozen=True)
class Part:
    """Of a package, the files that are asked for."""

    package: Package
    files: tuple[Path, ...]

    @property
    def names(self) -> set[str]:
        """The files, relative to the repository."""
        return {named(path) for path in self.files}

    @property
    def whole(self) -> bool:
        """Nothing of the package is left out."""
        return list(self.files) == self.package.files()


def parts(asked: Iterable[str]) -> list[Part]:
    """What these names mean: packages, or files and folders of them, or any other file of Python;
    all packages when nothing is asked. Raises UnknownModule."""
    names = list(asked) or [package.name for package in PACKAGES]
    wanted = {path for name in names for path in _meant(name)}
    found = [
        Part(package, tuple(path for path in package.files() if path in wanted))
        for package in PACKAGES
    ]
    others = sorted(wanted.difference(*(part.files for part in found)))
    found += [Part(Package(named(path), (), ()), (path,)) for path in others]
    return [part for part in found if part.files]


def _meant(name: str) -> list[Path]:
    every = {package.name: package.files() for package in PACKAGES}
    if name in every:
        return every[name]
    path = (ROOT / name).resolve()
    within = [each for files in every.values() for each in files if each.is_relative_to(path)]
    if not within and not path.is_file():
        raise UnknownModule(
            f"there is nothing to mutate in {name!r}: name a package ({', '.join(every)}), "
            "a folder of one, or a module, as core/mizar_core/planning/first_fit.py"
        )
    return within or [path]


def named(path: Path) -> str:
    """A file's name in tables and lists: relative to the repository."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def module_name(path: Path) -> str:
    """By which a file is imported."""
    folders = [Path(folder).resolve() for folder in sys.path]
    nearest = max(
        (folder for folder in folders if path.is_relative_to(folder)),
        key=lambda folder: len(folder.parts),
    )
    return ".".join(path.relative_to(nearest).with_suffix("").parts)
