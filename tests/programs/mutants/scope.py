"""The packages that are mutated, and the fast tests that should notice faults in each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class UnknownModule(Exception):
    """A name was asked for that no package has."""


@dataclass(frozen=True)
class Package:
    """Modules that are judged together. Patterns and folders are relative to the repository."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """The package's modules, sorted."""
        found = {path for pattern in self.modules for path in ROOT.glob(pattern)}
        return sorted(path for path in found if path.name != "__init__.py")


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names)


_CORE = _files(
    "core/mizar_core",
    "card",
    "carve",
    "names",
    "preferred_allocation",
    "spot_rules",
    "time_grants",
)
_OPERATOR = _files(
    "operator/mizar_operator",
    *(
        "apply",
        "apply_result",
        "delete_guard",
        "evict_or_delete",
        "quota_creation",
        "reconcile",
    ),
    *("scheduling_gates", "shadow_creation", "shadow_deletion", "shadow_disruption_budgets"),
    *("status_writer", "voided_actions"),
)
_WEBHOOK = _files(
    "operator/mizar_operator/webhook",
    *(
        "pod_patch",
        "pod_review",
        "pod_specs",
        "pool_sizes",
        "quota_review",
        "resource_names",
        "reviewer",
        "size_requests",
        "spot_review",
    ),
)
_AGENT = _files("nodeagent/mizar_nodeagent", "planning/*", "container/*", "audit/*", "plugin/*")
_PLANS = ("tests/unit/core", "tests/unit/operator", "tests/stateful", "tests/simulation")
_RECONCILES = ("tests/unit/operator", "tests/stateful", "tests/simulation")

PACKAGES = (
    Package("core/planning", ("core/mizar_core/planning/*.py",), (*_PLANS, "tests/property")),
    Package(
        "core/planning/spot",
        ("core/mizar_core/planning/spot/*.py",),
        (*_PLANS, "tests/property"),
    ),
    Package(
        "core",
        _CORE,
        (*_PLANS, "tests/property", "tests/unit/nodeagent", "tests/unit/webhook"),
    ),
    Package("nodeagent", _AGENT, ("tests/unit/nodeagent",)),
    Package(
        "nodeagent/spot",
        _files("nodeagent/mizar_nodeagent/spot", "*", "detectors/*"),
        ("tests/unit/nodeagent", "tests/stateful"),
    ),
    Package(
        "nodeagent/time_slicing",
        ("nodeagent/mizar_nodeagent/time_slicing/*.py",),
        ("tests/unit/nodeagent",),
    ),
    Package("operator", _OPERATOR, _RECONCILES),
    Package("operator/spot", ("operator/mizar_operator/spot/*.py",), _RECONCILES),
    Package("webhook", _WEBHOOK, ("tests/unit/webhook",)),
)

LEFT_OUT: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        _files("core/mizar_core", "errors", "field_types", "model_base", "schema", "models/*"),
        "declarations: what they say runs when they are imported, and is compared with the CRDs",
    ),
    (
        _files(
            "core/mizar_core",
            *("condition", "device_ids", "pod_requests", "quantities", "slice_devices"),
        ),
        "read and print what others decide by; properties hold for all of their inputs",
    ),
    (("core/mizar_core/validation.py",), "mostly sentences for people, which are not mutated"),
    (
        _files("nodeagent/mizar_nodeagent", "*", "cuda_context/*", "kubelet/*", "nri/*"),
        "I/O, and the loop around the plan: tests with a kubelet, or programs of their own",
    ),
    (
        _files("nodeagent/mizar_nodeagent", "overrides/*", "proto/*", "regions/*"),
        "layouts of files and of calls, compared with those of the shim and of Kubernetes",
    ),
    (
        _files(
            "operator/mizar_operator",
            *("action_log", "caches", "claimed_cards", "crd_check", "default_pool"),
            *("gather", "gauge_series", "handlers/*", "installation_check", "kopf_process"),
            *("kopf_store", "leader", "live_objects", "main", "manifests", "metrics"),
            *("namespace_labels", "node_needs", "node_policy", "node_view", "object_views"),
            *("offered_dra_cards", "pod_views", "posted_events", "readiness", "reconcile_state"),
            *("refusal_topology", "resource_slices", "runtime_classes", "settings"),
            *("shadow_counters", "snapshot_index", "uninstall", "unreadable", "volume_nodes"),
            *("waiting_pod_metrics",),
        ),
        "watches, views of objects and start-up: they decide nothing about cards",
    ),
    (
        _files(
            "operator/mizar_operator/webhook",
            *("cache", "issue_certificates", "main", "metrics", "mounted_certificate"),
            *("self_signed_certificate", "server", "serving_tls", "settings"),
        ),
        "certificates and serving: end-to-end tests",
    ),
)
"""The other modules of these programs, and why their tests are not judged here."""


@dataclass(frozen=True)
class Part:
    """The files of a package that were asked for."""

    package: Package
    files: tuple[Path, ...]

    @property
    def names(self) -> set[str]:
        """The paths of the files, relative to the repository."""
        return {named(path) for path in self.files}

    @property
    def whole(self) -> bool:
        """Whether these are all files of the package."""
        return list(self.files) == self.package.files()


def parts(asked: Iterable[str]) -> list[Part]:
    """The files that the names stand for: packages, files or folders of them, or any other Python
    file; all packages if there are no names. Raises UnknownModule."""
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
    """A file's name in tables and lists: its path relative to the repository."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def module_name(path: Path) -> str:
    """The name by which a file is imported."""
    folders = [Path(folder).resolve() for folder in sys.path]
    nearest = max(
        (folder for folder in folders if path.is_relative_to(folder)),
        key=lambda folder: len(folder.parts),
    )
    return ".".join(path.relative_to(nearest).with_suffix("").parts)
