"""Builds programs of others in a copy of their own Go module, whose go.mod and go.sum pin all
others."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.binaries import cache, command, gobuild, toolchain
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress, Step

LIMIT_S = 2400.0
"""Most seconds for each command of a build, which takes up to 10 minutes on two cores."""
_VERSION = re.compile(r"v\d+\.\d+\.\d+")


@dataclass(frozen=True)
class ModuleBuild:
    """A build, of which `what` is the name in messages and `log` the name of its log. Each of its
    commands may take `limit` seconds. `env`: what is added to Go's environment."""

    go: Path
    what: str
    log: str
    limit: float
    step: Step
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, where: Path, *argv: str) -> str:
        """Run a command in a folder. Returns the end of its output. Raises CommandFailed."""
        # A newer version may need a newer Go, which Go then gets itself.
        env = gobuild.environment(self.go) | {"GOTOOLCHAIN": "auto", **self.env}
        log = cache.logs() / f"build-{self.log}.log"
        limit, step = self.limit, self.step
        command.run(argv, what=self.what, log=log, limit=limit, step=step, cwd=where, env=env)
        return command.tail(log, lines=1000)

    def run_go(self, where: Path, *words: str) -> str:
        """Run Go with these words, as `run` does."""
        return self.run(where, str(self.go), *words)

    def copy(self, module: str, into: Path, leave_out: Collection[str] = ()) -> Path:
        """A copy of the module, such as sigs.k8s.io/kueue@v0.17.0, as the folder `source` in
        `into`, without files and folders that are called as one of `leave_out`. Raises
        CommandFailed."""
        report = self.run_go(into, "mod", "download", "-json", module)
        source, ignored = into / "source", shutil.ignore_patterns(*leave_out)
        shutil.copytree(json.loads(report[report.index("{") :])["Dir"], source, ignore=ignored)
        for path in [source, *source.rglob("*")]:  # Go's cache is read-only
            path.chmod(path.stat().st_mode | 0o200)
        return source


@dataclass(frozen=True)
class Module:
    """A project `title` whose Go module is built in the version that is asked for, such as
    `example`, in about so many `minutes`. `name`: of its folder in the cache. `env`: what is added
    to Go's environment."""

    title: str
    name: str
    example: str
    minutes: int
    env: Mapping[str, str] = field(default_factory=dict)

    def folder(self, version: str) -> Path:
        """Where that version is once it is built. Raises SetupError."""
        if not _VERSION.fullmatch(version):
            why = f"'{version}' is no version of {self.title}: write it as in {self.example}"
            raise SetupError(why)
        return cache.root() / self.name / f"{self.name}-{version.removeprefix('v')}"

    def build(
        self, version: str, progress: Progress, fill: Callable[[ModuleBuild, Path], None]
    ) -> Path:
        """The folder of that version. `fill` builds it into a folder, unless that was done before.
        Raises SetupError."""
        place = self.folder(version)

        def build_into(into: Path) -> None:
            text = f"building {self.title} {version} from its Go modules (about {self.minutes} min)"
            what, log = f"the build of {self.title} {version}", f"{self.name}-{version}"
            with progress.step(text) as step:
                go = toolchain.find(progress)
                fill(ModuleBuild(go, what, log, LIMIT_S, step, self.env), into)

        return cache.entry(place.parent, place.name, build_into, progress)
