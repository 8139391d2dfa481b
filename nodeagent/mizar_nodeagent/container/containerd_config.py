"""Reads from containerd's configuration how containers get cards: the default runtime, and whether
CDI is enabled.

A node may have another containerd than the kubelet's, so anything ambiguous counts as unknown.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mizar_kube.logs import get_logger

log = get_logger(__name__)

Table = Mapping[str, Any]
"""A table of a TOML file."""

CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
"""Names of the plugin that serves the kubelet: in containerd 2, in containerd 1, and in the first
version of the configuration's format."""
NVIDIAS: Final = "nvidia-container-runtime"
"""Beginning of the file names of NVIDIA's runtimes."""
PLAIN: Final = ("", "runc", "crun")
"""File names of runtimes that do not read NVIDIA_VISIBLE_DEVICES; empty for containerd's own
default."""
DROP_INS: Final = "conf.d/*.toml"
"""Files that containerd reads in addition to its own; from 2.2 by default."""


@dataclass(frozen=True)
class Containerd:
    """The settings of containerd that matter for cards. `nvidia_default`: NVIDIA's runtime is the
    default for containers. `plain_default`: the default is known not to read
    NVIDIA_VISIBLE_DEVICES. `handlers`: names of NVIDIA's runtimes, as a RuntimeClass selects them.
    `cdi`: whether CDI is enabled; None if the configuration does not say. `complete`: all files
    that the configuration consists of could be read."""

    nvidia_default: bool
    plain_default: bool
    handlers: tuple[str, ...] = ()
    cdi: bool | None = None
    complete: bool = True


def read(path: Path, version: int) -> Containerd | None:
    """The settings in this configuration file and its imports; None if they cannot be read or say
    nothing about pods' runtimes. `version`: containerd's major version."""
    try:
        return _read(path, version)
    except Exception as error:  # any error that a file which is not containerd's may cause
        log.debug("containerd's configuration cannot be read", path=path, error=error)
        return None


def _read(path: Path, version: int) -> Containerd | None:
    merged, complete = _merged(path, version)
    found = [one for one in _sections(merged) if isinstance(one.get("containerd"), dict)]
    if not found:
        return None
    runtimes = [_default(one["containerd"]) for one in found]
    # `default_runtime` is a form of the file's first version, which is not evaluated here.
    known = complete and not any("default_runtime" in one["containerd"] for one in found)
    cdi = [bool(one["enable_cdi"]) for one in found if "enable_cdi" in one]
    return Containerd(
        nvidia_default=any("nvidia" in f"{name} {one}".lower() for name, one in runtimes),
        plain_default=known and all(_is_plain(one) for _, one in runtimes),
        handlers=tuple(sorted({name for one in found for name in _nvidias(one["containerd"])})),
        cdi=cdi[-1] if cdi else None,
        complete=complete,
    )


def _merged(path: Path, version: int) -> tuple[dict[str, Any], bool]:
    """The configuration merged from all files, and whether all of them could be read. Raises
    OSError, ValueError."""
    found: dict[str, Any] = {}
    if path.exists() or path.is_symlink():
        _merge(found, _load(path))
    folder, complete = path.parent, True
    patterns = [Path(os.path.normpath(folder / one)) for one in found.get("imports", ())]
    by_default = (folder / DROP_INS,) if version >= 2 else ()
    for pattern in dict.fromkeys((*patterns, *by_default)):
        if not pattern.is_relative_to(folder):
            complete = False  # in a folder that is not mounted
            continue
        for one in sorted(folder.glob(str(pattern.relative_to(folder)))):
            other = _load(one)
            complete = complete and not other.get("imports")
            if version < 2:
                _forget_plugins_of(other, found)
            _merge(found, other)
    return found, complete


def _forget_plugins_of(other: Table, found: dict[str, Any]) -> None:
    """Remove the sections of plugins that `other` has too: before 2.0, containerd replaces a
    plugin's section by that of the next file, whatever keys it has."""
    for name in other.get("plugins", {}):
        found.get("plugins", {}).pop(name, None)


def _merge(into: dict[str, Any], other: Table) -> None:
    for key, value in other.items():
        if isinstance(value, dict):
            below = into.get(key)
            into[key] = dict(below) if isinstance(below, dict) else {}
            _merge(into[key], value)
        else:
            into[key] = value


def _load(path: Path) -> Table:
    now = path.stat()
    return _parsed(path, now.st_ino, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=64)
def _parsed(path: Path, inode: int, written: int, size: int) -> Table:
    """The parsed file. Cached for each state of the file."""
    return tomllib.loads(path.read_text())


def _sections(config: Table) -> Iterator[Table]:
    """The configuration of the plugin that serves the kubelet, unless it is disabled."""
    off = {str(one).rpartition(".")[2] for one in config.get("disabled_plugins", ())}
    plugins = config.get("plugins", {})
    for name in () if "cri" in off else CRI:
        if isinstance(plugins.get(name), dict):
            yield plugins[name]


def _default(section: Table) -> tuple[str, Table]:
    name = str(section.get("default_runtime_name", "runc"))
    return name, section.get("runtimes", {}).get(name, {})


def _programs(runtime: Table) -> Iterator[str]:
    """File names of the programs that a runtime starts."""
    options = runtime.get("options", {})
    for one in (options.get("BinaryName"), runtime.get("runtime_path"), runtime.get("Runtime")):
        yield Path(str(one or "")).name


def _is_plain(runtime: Table) -> bool:
    return all(one in PLAIN for one in _programs(runtime)) and not runtime.get("base_runtime_spec")


def _nvidias(section: Table) -> Iterator[str]:
    for name, runtime in section.get("runtimes", {}).items():
        if name == "nvidia" or any(one.startswith(NVIDIAS) for one in _programs(runtime)):
            yield name
