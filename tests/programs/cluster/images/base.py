"""The base image: a minimal Debian made by mmdebstrap, in the place of debian:12-slim.

As in debian:slim, documentation and translations are left out (copyrights stay) and apt
keeps no caches.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from pathlib import Path

from cluster.binaries import cache, command, debian
from cluster.binaries.components import ARCH
from cluster.binaries.progress import Progress
from cluster.images import archive

SUITE = "bookworm"
KEPT = 2
LIMIT = 900.0  # seconds; 20 usually
# /usr is merged by a hook: the package that would do it comes with 45 MB of Perl.
_VARIANT = (
    "--mode=root",
    "--variant=minbase",
    "--include=usr-is-merged",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
)
_LEFT_OUT = ("doc", "man", "info", "locale", "lintian")
_CLEAN = "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb || true"
_APT = (
    'Dir::Cache::pkgcache ""',
    'Dir::Cache::srcpkgcache ""',
    'Acquire::Languages "none"',
    'Acquire::GzipIndexes "true"',
    f'DPkg::Post-Invoke {{ "{_CLEAN}"; }}',
)
# What the machine says about how to reach and trust package mirrors holds in the image too.
_HOST_SETTINGS = re.compile(r'^(Acquire::(?:Check-\S+|\S*::Proxy\S*) "[^"]+");$', re.MULTILINE)


def ensure(progress: Progress) -> tuple[str, Path]:
    """The base image's name and its docker-archive, made the first time."""
    tag = key()
    name = f"localhost/base:{tag}"

    def fill(into: Path) -> None:
        debian.ensure(["mmdebstrap", "util-linux"], progress)
        _make(name, into, progress)

    images = cache.root() / "images"
    made = cache.entry(images, f"base-{tag}", fill, progress)
    cache.keep_latest(images, "base-*", made, KEPT)
    return name, made / "image.tar"


@functools.cache
def key() -> str:
    """The hash of how the base image is made."""
    return hashlib.sha256("\0".join((SUITE, ARCH, *_options())).encode()).hexdigest()[:12]


def _make(name: str, into: Path, progress: Progress) -> None:
    layer = into / "layer.tar"
    with progress.step(f"making a minimal Debian {SUITE} for the images (20 s)") as step:
        command.run(
            ["mmdebstrap", *_options(), SUITE, str(layer), *_mirror()],
            what="mmdebstrap",
            log=cache.logs() / "build-base.log",
            limit=LIMIT,
            step=step,
            env={"TMPDIR": str(into)},  # where a killed run leaves nothing for good
            isolated=True,
        )
    config = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
    archive.write(into / "image.tar", name, layer, config)
    layer.unlink()


def _options() -> list[str]:
    paths = [f"path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    paths.append("path-include=/usr/share/doc/*/copyright")
    apt = [*_APT, *_host_settings()]
    dpkg = [f"--dpkgopt={path}" for path in paths]
    return [*_VARIANT, *dpkg, *(f"--aptopt={option}" for option in apt)]


def _host_settings() -> list[str]:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30)
    return sorted(set(_HOST_SETTINGS.findall(dump.stdout)))


def _mirror() -> list[str]:
    mirror = os.environ.get("MIZAR_DEBIAN_MIRROR")
    return [mirror] if mirror else []
