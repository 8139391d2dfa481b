"""Builds programs of others in a copy of their own Go module, whose go.mod and go.sum pin all
others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.binaries import cache, command, gobuild
from cluster.binaries.progress import Step


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
