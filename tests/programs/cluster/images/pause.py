"""The pause image: one small static program, so neither a base nor buildah is needed."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

from cluster.binaries import cache, command, debian
from cluster.binaries.components import ARCH
from cluster.binaries.progress import Progress
from cluster.images import archive
from cluster.images.table import PAUSE

SOURCE = Path(__file__).with_name("pause.c")
NOBODY = "65535:65535"
_FLAGS = ("-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror")


def digest() -> str:
    """The hash of what the image is made of."""
    parts = (SOURCE.read_bytes(), ARCH.encode(), " ".join(_FLAGS).encode(), NOBODY.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build(file: Path, progress: Progress) -> None:
    """Write the image's docker-archive to `file`."""
    if shutil.which("cc") is None:
        debian.ensure(["gcc", "libc6-dev"], progress)
    program = file.with_name("pause")
    command.run(
        ["cc", *_FLAGS, "-o", str(program), str(SOURCE)],
        what="the compilation of pause.c",
        log=cache.logs() / "build-pause.log",
        limit=120,
    )
    layer = file.with_name("layer.tar")
    with tarfile.open(layer, "w") as tar:
        archive.add_bytes(tar, "pause", program.read_bytes(), mode=0o755)
    archive.write(file, PAUSE, layer, {"User": NOBODY, "Entrypoint": ["/pause"]})
    layer.unlink()
    program.unlink()
