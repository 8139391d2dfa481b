"""Builds the programs of another version of Kubernetes than the pinned one, so that Mizar's tests
can run on it: `MIZAR_KUBERNETES=1.30.14 make e2e`.

The versions of the Go modules that it needs are not pinned here: `go mod tidy` chooses them from
that Kubernetes' own go.mod. etcd is the pinned one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from cluster.binaries import cache, command, toolchain
from cluster.binaries.components import COMPONENTS, SOURCES
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress, Step

VARIABLE = "MIZAR_KUBERNETES"
"""The variable of the environment that names the version."""
LIMIT_S = 3600.0
"""Most seconds for each of the steps, of which the longest takes about 10 minutes on two cores."""
_VERSION = re.compile(r"1\.(\d+)\.\d+")
_STAGED = re.compile(r"(k8s\.io/[\w.-]+) => \./staging")
_GO_LINE = re.compile(r"^go (\S+)$", re.MULTILINE)
_VERSION_PACKAGE = "k8s.io/component-base/version"
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


def ensure_kubernetes(version: str, etcd: Path, progress: Progress) -> Path:
    """A folder with the programs of that Kubernetes, such as 1.30.14, and with this etcd. They are
    built the first time, which takes about 10 minutes. Raises SetupError."""
    if not _VERSION.fullmatch(version):
        raise SetupError(f"${VARIABLE}: '{version}' is no version: write it as in 1.30.14")
    folder = cache.entry(
        cache.root() / "programs",
        f"other-kubernetes-{version}",
        lambda into: _build(version, into, progress),
        progress,
    )
    link = folder / "etcd"
    link.unlink(missing_ok=True)
    link.symlink_to(etcd)
    return folder


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
    go = toolchain.find(progress)
    title = f"Kubernetes {version}"
    source = into / "source"
    source.mkdir()
    log = cache.logs() / f"build-other-kubernetes-{version}.log"
    with progress.step(f"building {title} from its Go modules (about 10 min)") as step:
        name = f"k8s.io/kubernetes@v{version}"
        _go(go, ["mod", "download", "-json", name], title, log, step, source)
        report = command.tail(log, lines=1000)
        kubernetes = Path(json.loads(report[report.index("{") :])["GoMod"]).read_text()
        (source / "go.mod").write_text(module(version, kubernetes))
        pinned = (SOURCES / "kubernetes" / "main.go").read_text()
        (source / "main.go").write_text(main_program(pinned))
        _go(go, ["mod", "tidy"], title, log, step, source)
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", _ldflags(version)]
        _go(go, ["build", *flags, "-o", f"{into}/kubernetes", "."], title, log, step, source)
    shutil.rmtree(source)
    for program in _programs():
        (into / program).symlink_to("kubernetes")


def _programs() -> list[str]:
    (pinned,) = (one for one in COMPONENTS if one.name == "kubernetes")
    return [one for one in pinned.programs if one != "etcd"]


def _ldflags(version: str) -> str:
    set_ = f"-X {_VERSION_PACKAGE}"
    minor = version.split(".")[1]
    return f"-s -w {set_}.gitVersion=v{version} {set_}.gitMajor=1 {set_}.gitMinor={minor}"


def _go(go: Path, words: list[str], title: str, log: Path, step: Step, where: Path) -> None:
    path = f"{go.parent}:{os.environ.get('PATH', '')}"
    # A newer Kubernetes may need a newer Go, which Go then gets itself.
    env = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "auto", "GOWORK": "off", "PATH": path}
    what = f"the build of {title}"
    command.run([str(go), *words], what=what, log=log, limit=LIMIT_S, step=step, cwd=where, env=env)
