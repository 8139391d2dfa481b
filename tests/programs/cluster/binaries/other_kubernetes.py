"""Builds the programs of another version of Kubernetes than the pinned one, so that Mizar's tests
can run on it: `MIZAR_KUBERNETES=1.30.14 make e2e`.

The versions of the Go modules that it needs are not pinned here: `go mod tidy` chooses them from
that Kubernetes' own go.mod. etcd is the pinned one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import cache, command, gobuild, toolchain
from cluster.binaries.components import COMPONENTS, SOURCES, kubernetes_ldflags
from cluster.binaries.errors import SetupError
from cluster.binaries.named_version import named_version
from cluster.binaries.progress import Progress, Step

VARIABLE = "MIZAR_KUBERNETES"
"""The variable of the environment that names the version."""
(PINNED,) = (one for one in COMPONENTS if one.name == "kubernetes")
"""The usual Kubernetes."""
PROGRAMS = tuple(one for one in PINNED.programs if one != "etcd")
"""The programs that are built."""
MAIN = SOURCES / "kubernetes" / "main.go"
"""The usual program, of which each of PROGRAMS is a name."""
FETCH_LIMIT_S = 500.0
"""Most seconds for getting modules."""
BUILD_LIMIT_S = 1600.0
"""Most seconds for the build, which takes about 10 minutes on two cores."""
_VERSION = re.compile(r"1\.(\d+)\.\d+")
_STAGED = re.compile(r"(k8s\.io/[\w.-]+) => \./staging")
_GO_LINE = re.compile(r"^go (\S+)$", re.MULTILINE)
_KUBELET = "kubelet.NewKubeletCommand(context.Background())"
_ANY_KUBELET = "kubeletCommand()"
_KUBELET_COMMAND = """
// Older kubelets' function has no argument.
func kubeletCommand() *cobra.Command {
	made := reflect.ValueOf(kubelet.NewKubeletCommand)
	arguments := []reflect.Value{reflect.ValueOf(context.Background())}
	return made.Call(arguments[:made.Type().NumIn()])[0].Interface().(*cobra.Command)
}
"""


def wanted() -> str | None:
    """The version that the environment names; None if it names none. Raises SetupError."""
    return named_version(VARIABLE, _VERSION, "1.30.14", PINNED)


def ensure_kubernetes(version: str, progress: Progress) -> dict[str, Path]:
    """The programs of that Kubernetes, such as 1.30.14, by name. They are built the first time,
    which takes about 10 minutes. Raises SetupError."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + MAIN.read_bytes()).hexdigest()[:12]
    folder = cache.entry(
        cache.root() / "programs",
        f"other-kubernetes-{version}-{digest}",
        lambda into: _build(version, into, progress),
        progress,
    )
    return {program: folder / program for program in PROGRAMS}


def module(version: str, kubernetes: str) -> str:
    """The go.mod of a program made of Kubernetes' parts. `kubernetes`: the text of that version's
    own go.mod, which replaces its parts by folders of its tree; as modules they have the version
    0.N.P."""
    go = _GO_LINE.search(kubernetes)
    parts = sorted(set(_STAGED.findall(kubernetes)))
    if go is None or not parts:
        raise SetupError(f"the go.mod of Kubernetes {version} is not as expected")
    part_version = f"v0.{version.removeprefix('1.')}"
    replaced = "\n".join(f"\t{one} => {one} {part_version}" for one in parts)
    return (
        f"module mizar.share/tests/cluster/kubernetes\n\ngo {go[1]}\n\n"
        f"require k8s.io/kubernetes v{version}\n\nreplace (\n{replaced}\n)\n"
    )


def main_program(text: str) -> str:
    """The Go program for any version, from the pinned version's: without etcd, whose modules may
    not fit, and with a kubelet of either form."""
    lines = [one for one in text.splitlines() if "etcdmain" not in one]
    without = re.sub(r'\tif name == "etcd" \{\n.*?\n\t\}\n', "", "\n".join(lines), flags=re.DOTALL)
    found = without.replace(_KUBELET, _ANY_KUBELET).replace('\t"os"', '\t"os"\n\t"reflect"', 1)
    if found.count(_ANY_KUBELET) != 1 or 'etcd" {' in found:
        raise SetupError("main.go of the pinned Kubernetes is not as expected")
    return f"{found}\n{_KUBELET_COMMAND}"


def _build(version: str, into: Path, progress: Progress) -> None:
    source = into / "source"
    source.mkdir()
    with progress.step(f"building Kubernetes {version} from its Go modules (about 10 min)") as step:
        go = _Go(toolchain.find(progress), f"the build of Kubernetes {version}", version, source)
        report = go.run(
            ["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], FETCH_LIMIT_S, step
        )
        kubernetes = Path(_report(version, report)["GoMod"]).read_text()
        (source / "go.mod").write_text(module(version, kubernetes))
        (source / "main.go").write_text(main_program(MAIN.read_text()))
        go.run(["mod", "tidy"], FETCH_LIMIT_S, step)
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {kubernetes_ldflags(version)}"]
        go.run(["build", *flags, "-o", f"{into}/kubernetes", "."], BUILD_LIMIT_S, step)
    shutil.rmtree(source)
    for program in PROGRAMS:
        (into / program).symlink_to("kubernetes")


def _report(version: str, text: str) -> dict[str, str]:
    """What `go mod download -json` reports, in a log that has other lines too."""
    try:
        return dict(json.loads(text[text.index("{") :]))
    except ValueError as error:
        raise SetupError(f"Kubernetes {version} cannot be got as a Go module: {text}") from error


@dataclass(frozen=True)
class _Go:
    """Runs Go in a folder. `what`: the work, for messages."""

    program: Path
    what: str
    version: str
    where: Path

    def run(self, words: list[str], limit: float, step: Step) -> str:
        """Run `go` with these words for at most `limit` seconds. Returns the end of its output.
        Raises CommandFailed."""
        log = cache.logs() / f"build-other-kubernetes-{self.version}.log"
        # A newer Kubernetes may need a newer Go, which Go then gets itself.
        env = gobuild.environment(self.program) | {"GOTOOLCHAIN": "auto"}
        argv = [str(self.program), *words]
        command.run(argv, what=self.what, log=log, limit=limit, step=step, cwd=self.where, env=env)
        return command.tail(log, lines=1000)
