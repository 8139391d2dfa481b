"""CRI-O as the nodes' container runtime: built from its Go modules, with Debian's conmon and
runc."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.binaries import debian
from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress
from cluster.images import PAUSE

SOCKET = "/run/crio/crio.sock"
STORE, STORE_STATE = "/var/lib/containers/storage", "/run/containers/storage"
RUNTIME = "runc"
"""The program that makes containers: Debian 12's crun is too old for CRI-O."""
PACKAGES = ("buildah", "conmon", RUNTIME, "libseccomp-dev", "pkg-config")
# Parts of it are in C.
MODULE = Module("CRI-O", "crio", "v1.36.3", minutes=5, env={"CGO_ENABLED": "1"})
_TAGS = (
    "containers_image_openpgp",
    "containers_image_ostree_stub",
    "exclude_graphdriver_btrfs",
    "seccomp",
)


def folder(version: str) -> Path:
    """Where the programs of that version, such as v1.36.3, are, once they are built. Raises
    SetupError."""
    return MODULE.folder(version)


def build(version: str, progress: Progress) -> Path:
    """The folder with the programs crio and pinns of that version. Raises SetupError."""
    folder(version)  # a wrong version is refused before anything is installed
    debian.ensure(PACKAGES, progress)

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"github.com/cri-o/cri-o@{version}", into)
    (source / "bin").mkdir()
    build.run(source / "pinns", "make")
    flags = ("-mod=mod", "-trimpath", "-buildvcs=false", "-tags", " ".join(_TAGS))
    words = ("-ldflags", "-s -w", "-o", "bin/crio", "./cmd/crio")
    build.run_go(source, "build", "-v", *flags, *words)
    for program in ("crio", "pinns"):
        (source / "bin" / program).rename(into / program)
    shutil.rmtree(source)


def script(program: str, may_lower_oom_score: bool) -> str:
    """A shell script that runs `program`, which makes containers, without what this machine cannot
    do: limits for huge pages where the kernel counts none, and a lower OOM score where root may not
    lower it."""
    lower = "" if may_lower_oom_score else _KEEP_OOM_SCORE
    return _SCRIPT.format(program=program, lower=lower)


_KEEP_OOM_SCORE = r"""    sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' "$bundle/config.json"
"""
_SCRIPT = r"""#!/bin/sh
bundle= before=
for word in "$@"; do
    [ "$before" = --bundle ] && bundle=$word
    before=$word
done
if [ -n "$bundle" ]; then
    [ -d /sys/fs/cgroup/hugetlb ] || grep -qs hugetlb /sys/fs/cgroup/cgroup.controllers ||
        sed -z -i 's/"hugepageLimits": *\[[^]]*\]/"hugepageLimits": []/' "$bundle/config.json"
{lower}fi
exec {program} "$@"
"""


MONITOR_SCRIPT = """\
#!/bin/sh
bundle= id= before=
for word in "$@"; do
    case $before in -b) bundle=$word ;; -c) id=$word ;; esac
    before=$word
done
if [ -n "$bundle" ]; then
    pod=$(sed -n 's/.*"cgroupsPath": *"\\([^"]*\\)".*/\\1/p' "$bundle/config.json")
    pod=${pod%/*}
    for root in /sys/fs/cgroup /sys/fs/cgroup/memory; do
        if [ -d "$root$pod" ]; then
            mkdir -p "$root$pod/crio-conmon-$id"
            echo $$ >"$root$pod/crio-conmon-$id/cgroup.procs"
        fi
    done
fi
exec /usr/bin/conmon "$@"
"""
"""Runs conmon in the cgroup of the pod, as CRI-O does with systemd where its configuration says so,
as OpenShift's does. Without systemd, CRI-O leaves it in its own."""


def config(
    programs: Path, cni_bin: Path, cni_conf: Path, scripts: dict[str, Path], monitor: Path
) -> str:
    """CRI-O's crio.conf; NRI and CDI are on, as by default. `programs`: CRI-O's own. `scripts`: the
    programs that make containers, by handler, the default one first. `monitor`: the program that
    watches a container."""
    default, *_ = scripts
    handlers = "".join(_handler(name, path, monitor) for name, path in scripts.items())
    return f"""\
[crio]
root = "{STORE}"
runroot = "{STORE_STATE}"
storage_driver = "overlay"
version_file = "/run/crio/version"
clean_shutdown_file = "/var/lib/crio/clean.shutdown"

[crio.api]
listen = "{SOCKET}"

[crio.runtime]
cgroup_manager = "cgroupfs"
apparmor_profile = "unconfined"
default_runtime = "{default}"
pinns_path = "{programs / "pinns"}"
namespaces_dir = "/run/crio"
container_exits_dir = "/run/crio/exits"
container_attach_socket_dir = "/run/crio"
hooks_dir = []
{handlers}
[crio.image]
pause_image = "{PAUSE}"

[crio.network]
network_dir = "{cni_conf}"
plugin_dirs = ["{cni_bin}"]

[crio.nri]
enable_nri = true
"""


def _handler(name: str, path: Path, monitor: Path) -> str:
    return f"""
[crio.runtime.runtimes.{name}]
runtime_path = "{path}"
runtime_root = "/run/{name}"
monitor_path = "{monitor}"
monitor_cgroup = "pod"
"""


def importing() -> list[str]:
    """The command that imports the images of the docker archive that is its standard input."""
    store = ["--root", STORE, "--runroot", STORE_STATE, "--storage-driver", "overlay"]
    return ["buildah", *store, "pull", "--quiet", "docker-archive:/dev/stdin"]
