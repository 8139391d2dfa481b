"""A containerd store with the images already in it, which a new node takes over in no time.

Importing 600 MB of images takes 10 s and more, at every start and on every node. Instead it
is done once, into a store in the cache; a node's store is a copy of it made of hard links.
That is safe because containerd writes neither to a finished blob nor to a finished layer:
only its databases change, and those are copied for real.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster.binaries import Binaries, cache, command
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress

KEPT = 3
LIMIT = 600.0  # seconds
SCRIPT = Path(__file__).with_name("fill_store.sh")


def prepared_store(archives: Iterable[Path], binaries: Binaries, progress: Progress) -> Path:
    """A folder fit to be copied (see `clone_store`) as containerd's root; made once (root).

    `archives` are those of `ensure_images`, whose paths name their content; the images are in
    containerd's namespace k8s.io, unpacked for the snapshotter overlayfs.
    """
    paths = sorted(str(path) for path in archives)
    program = str(binaries.path("containerd").resolve())
    digest = hashlib.sha256("\0".join([program, SCRIPT.read_text(), *paths]).encode()).hexdigest()

    def fill(into: Path) -> None:
        _import(paths, binaries, into, progress)

    folder = cache.root() / "stores"
    store = cache.entry(folder, f"store-{digest[:12]}", fill, progress)
    cache.keep_latest(folder, "store-*", store, KEPT)
    return store


def _import(archives: list[str], binaries: Binaries, into: Path, progress: Progress) -> None:
    with progress.step(f"importing {len(archives)} images into a store for all nodes") as step:
        command.run(
            [str(SCRIPT), str(binaries.dir), str(into), *archives],
            what="the import of the images",
            log=cache.logs() / "fill-store.log",
            limit=LIMIT,
            step=step,
            isolated=True,
        )


def clone_store(store: Path, root: Path) -> None:
    """Copy a prepared store to `root`, which must not exist; removing the copy is harmless."""
    if root.exists():
        raise SetupError(f"{root} exists already: remove it first")
    root.parent.mkdir(parents=True, exist_ok=True)
    if not _copy("--link", store, root):
        cache.remove(root)  # another file system: no hard links to there
        if not _copy("--reflink=auto", store, root):
            raise SetupError(f"{store} cannot be copied to {root}: is the disk full?")
        return
    for database in store.rglob("*.db"):
        _unlink_from(database, root / database.relative_to(store))


def _copy(how: str, source: Path, to: Path) -> bool:
    argv = ["cp", "--archive", how, str(source), str(to)]
    return subprocess.run(argv, capture_output=True, timeout=LIMIT).returncode == 0


def _unlink_from(database: Path, copy: Path) -> None:
    copy.unlink()
    shutil.copy2(database, copy)
