"""Builds the images that are not in the cache."""

from __future__ import annotations

import os
from pathlib import Path

from cluster.binaries import cache
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress
from cluster.images import base, context, pause
from cluster.images.buildah import open_store
from cluster.images.table import IMAGES, PAUSE, full_names, short

KEPT = 3  # archives of one image, for going back and forth between versions


def ensure_images(progress: Progress, names: list[str] | None = None) -> dict[str, Path]:
    """Docker-archives of the images `names` (all of them by default), by their full names.

    Builds those whose inputs have changed (root; minutes the first time, seconds after that).
    SetupError says what to do if one cannot be built.
    """
    wanted = full_names(names)
    archives = {image.name: context.read(image) for image in IMAGES if image.name in wanted}
    found = {name: _built(one, progress) for name, one in archives.items()}
    if PAUSE in wanted:
        found[PAUSE] = _pause(progress)
    return {name: found[name] for name in wanted}


def _store() -> Path:
    return cache.root() / "images"


def _pause(progress: Progress) -> Path:
    key = f"pause-{pause.digest()}"

    def fill(into: Path) -> None:
        pause.build(into / "image.tar", progress)

    return cache.entry(_store(), key, fill, progress) / "image.tar"


def _built(inputs: context.Context, progress: Progress) -> Path:
    name = short(inputs.image.name)

    def fill(into: Path) -> None:
        _require_root(inputs.image.name)
        with progress.step(f"building image {inputs.image.name}"):
            _build(inputs, into / "image.tar", progress)

    folder = cache.entry(_store(), f"{name}-{inputs.digest(base.key())}", fill, progress)
    cache.keep_latest(_store(), f"{name}-*", folder, KEPT)
    return folder / "image.tar"


def _build(inputs: context.Context, archive: Path, progress: Progress) -> None:
    base_name, base_archive = base.ensure(progress)
    with cache.locked(cache.root() / ".buildah.lock", progress):
        buildah = open_store(progress)
        buildah.tidy()
        buildah.load(base_name, base_archive)
        with buildah.context() as folder:
            inputs.write(folder)
            with progress.step("running the Dockerfile") as step:
                buildah.build(inputs.image.name, inputs.image.target, folder, base_name, step)
        buildah.export(inputs.image.name, archive)


def _require_root(name: str) -> None:
    if os.geteuid() != 0:
        raise SetupError(f"building {name} needs root (mounts, chroot): run it with sudo")
