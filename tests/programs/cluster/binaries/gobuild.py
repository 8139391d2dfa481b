"""Builds a component's programs from the Go modules that src/*/go.{mod,sum} pin."""

from __future__ import annotations

import os
from pathlib import Path

from cluster.binaries import cache, command, toolchain
from cluster.binaries.components import SOURCES, Component
from cluster.binaries.progress import Progress

LIMIT_FACTOR = 6  # a slow or loaded machine may take this many times the usual minutes


def build(component: Component, into: Path, progress: Progress) -> None:
    """Fill the folder `into` with the component's programs; CommandFailed if it cannot be built."""
    go = toolchain.find(progress)
    plan = component.build
    about = f"about {plan.minutes:g} min from nothing" if plan.minutes >= 1 else "seconds"
    with progress.step(f"building {component.title} from its Go modules ({about})") as step:
        command.run(
            [
                str(go),
                "build",
                "-v",
                "-trimpath",
                *_flags(component),
                "-o",
                f"{into}/",
                plan.package,
            ],
            what=f"the build of {component.title}",
            log=cache.logs() / f"build-{component.name}.log",
            limit=max(300.0, plan.minutes * 60 * LIMIT_FACTOR),
            step=step,
            cwd=SOURCES / plan.module,
            env=environment(go),
        )
    for name in plan.links:
        (into / name).symlink_to(component.name)


def _flags(component: Component) -> list[str]:
    tags = ["-tags", component.build.tags] if component.build.tags else []
    return [
        "-buildvcs=false",
        "-mod=readonly",
        *tags,
        "-ldflags",
        f"-s -w {component.build.ldflags}",
    ]


def environment(go: Path) -> dict[str, str]:
    """What is added to the environment of this Go."""
    # GOTOOLCHAIN: the version is pinned by us; GOWORK: a workspace above must not interfere.
    path = f"{go.parent}:{os.environ.get('PATH', '')}"
    return {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "PATH": path}
