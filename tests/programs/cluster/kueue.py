"""Builds Kueue from its Go modules, and installs it into a cluster by its own manifests."""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import yaml

from cluster.binaries.errors import SetupError
from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress
from cluster.cluster import Cluster
from cluster.images import archive

NAMESPACE = "kueue-system"
DEPLOYMENT = "deployment/kueue-controller-manager"
SETTINGS = "kueue-manager-config"
"""The ConfigMap with Kueue's configuration."""
SETTINGS_FILE = "controller_manager_config.yaml"
IMAGE = "localhost/kueue:dev"
MODULE = Module("Kueue", "kueue", "v0.17.0", minutes=10)
_PUBLISHED = re.compile(r"image: \S+/kueue:\S+\n\s+imagePullPolicy: \w+")


def build(version: str, progress: Progress) -> Path:
    """A folder with the manifests of that version, such as v0.17.0, as `config`, and its image as
    `image.tar`. Raises SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def install(cluster: Cluster, built: Path, settings: str) -> None:
    """Install Kueue as its manifests say, with `settings` (YAML) added to its configuration. It
    works on return."""
    cluster.load_image(built / "image.tar")
    manifests = cluster.kubectl("kustomize", str(built / "config" / "default")).stdout
    ours, replaced = _PUBLISHED.subn(f"image: {IMAGE}\n        imagePullPolicy: Never", manifests)
    if replaced != 1:
        raise SetupError(f"the manifests of Kueue in {built} are not as expected")
    objects = list(yaml.safe_load_all(ours))
    for one in objects:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS:
            one["data"][SETTINGS_FILE] += settings
        if one["kind"] == "Deployment":  # machines for tests may have two busy cores
            for container in one["spec"]["template"]["spec"]["containers"]:
                del container["resources"]["requests"]["cpu"]
                del container["resources"]["limits"]["cpu"]
    cluster.kubectl("apply", "--server-side", "--filename=-", input=yaml.safe_dump_all(objects))
    cluster.kubectl("rollout", "status", DEPLOYMENT, f"--namespace={NAMESPACE}", "--timeout=280s")


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"sigs.k8s.io/kueue@{version}", into)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
    build.run_go(source, "build", "-v", *flags, "-o", f"{into}/manager", "./cmd/kueue")
    (source / "config").rename(into / "config")
    shutil.rmtree(source)
    _image(into)


def _image(into: Path) -> None:
    program, layer = into / "manager", into / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        archive.add_bytes(tar, "manager", program.read_bytes(), mode=0o755)
    archive.write(into / "image.tar", IMAGE, layer, {"User": "65532:65532"})
    layer.unlink()
    program.unlink()
