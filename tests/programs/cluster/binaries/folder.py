"""A folder of programs that the user names, checked before it is used."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from cluster.binaries.components import COMPONENTS, Component
from cluster.binaries.errors import SourceRefused
from cluster.binaries.progress import Progress

ANSWER_LIMIT = 20.0  # seconds for a program to say its version


def named(component: Component) -> Path | None:
    """The folder that the user's environment names for this component."""
    value = os.environ.get(component.folder_variable)
    return Path(value).expanduser().absolute() if value else None


def check(component: Component, folder: Path, progress: Progress) -> None:
    """Raise SourceRefused unless `folder` has every program, and each runs on this machine.

    Programs of another version than the project's are permitted; a note says so.
    """
    lacking = [name for name in component.programs if not _executable(folder / name)]
    if lacking:
        raise SourceRefused(
            f"{component.folder_variable}={folder} lacks {', '.join(lacking)} (as executable"
            f" files): put them there, or unset {component.folder_variable}"
        )
    program = folder / component.asked
    said = _version(component, program)
    if component.version not in said:
        progress.say(f"note: {program} is {said}, not {component.version}")


def kubernetes_minor(kubelet: Path) -> int:
    """The N of the kubelet's Kubernetes 1.N. Raises SourceRefused."""
    said = _version(_component("kubernetes"), kubelet)
    match = re.search(r"\bv1\.(\d+)\.", said)
    if match is None:
        raise SourceRefused(f"{kubelet} is {said}, no Kubernetes 1.N: replace it")
    return int(match[1])


def containerd_version(containerd: Path) -> tuple[int, int]:
    """Major and minor version of this containerd. Raises SourceRefused."""
    said = _version(_component("containerd"), containerd)
    match = re.search(r" v?(\d+)\.(\d+)\.", said)
    if match is None:
        raise SourceRefused(f"{containerd} is {said}, no containerd: replace it")
    return int(match[1]), int(match[2])


def _component(name: str) -> Component:
    (found,) = (one for one in COMPONENTS if one.name == name)
    return found


def _executable(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


def _version(component: Component, program: Path) -> str:
    try:
        done = subprocess.run(
            [str(program), *component.version_words],
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceRefused(f"{program} does not run here ({error}): replace it") from error
    if done.returncode != 0:
        raise SourceRefused(f"{program} ends with status {done.returncode}: replace it")
    return (done.stdout.strip().splitlines() or ["silent about its version"])[0]
