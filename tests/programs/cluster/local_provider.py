"""Makes, finds and removes clusters on this machine, as root, without Docker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster import cleanup, crio, nvidia_plugin, preflight, state
from cluster.binaries import Binaries, ensure
from cluster.binaries.progress import Progress
from cluster.errors import AlreadyUp, ClusterError, NotUp
from cluster.images import CUDA_SAMPLE, NODEAGENT, OPERATOR, PAUSE, ensure_images, prepared_store
from cluster.interrupts import interruptible_once
from cluster.layout import ROOT, Layout
from cluster.local_cluster import LocalCluster
from cluster.spec import ClusterSpec
from cluster.startup import Images, Startup
from simgpu.build import BuildError, compiled

MIZAR = (OPERATOR, NODEAGENT, CUDA_SAMPLE)


class LocalProvider:
    """Makes clusters out of namespaces on this machine."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def up(self, spec: ClusterSpec, progress: Progress, images: Sequence[str] = ()) -> LocalCluster:
        """Make a cluster; if anything goes wrong on the way, nothing of it is left.

        Its nodes know `images` (names from cluster.images) from the start; also Mizar's, if it is
        to be installed. Raises AlreadyUp when there is one of that name. Remains of one that was
        killed are removed first.
        """
        preflight.require_root()
        layout = Layout(spec.name, self._root)
        with state.locked(layout), interruptible_once():
            if state.is_up(layout):
                raise AlreadyUp(
                    f"cluster {spec.name} is up already: use it, choose another name, "
                    f"or run `python -m cluster down --name {spec.name}`"
                )
            cleanup.remove(layout, progress)
            preflight.check(spec.nodes)
            binaries = ensure(progress)
            if spec.cri_o:
                crio.build(spec.cri_o, progress)
            if spec.nvidia_plugin:
                nvidia_plugin.build(spec.nvidia_plugin, progress)
            names = {PAUSE, *images, *(MIZAR if spec.mizar else ())}
            first = first_images(sorted(names), binaries, progress)
            if spec.cards:
                compile_driver(progress)
            try:
                Startup(layout, spec, binaries, first, progress).run()
            except BaseException:
                cleanup.remove(layout, progress)
                raise
        return self.get(spec.name)

    def get(self, name: str) -> LocalCluster:
        """The cluster of that name that is up; NotUp if there is none."""
        layout = Layout(name, self._root)
        known = state.read(layout)
        if known is None or not state.is_up(layout):
            raise NotUp(f"there is no cluster {name} up: run `python -m cluster up --name {name}`")
        return LocalCluster(layout, known.spec, known.binaries)

    def down(self, name: str, progress: Progress) -> bool:
        """Remove a cluster in any state. Returns False if nothing of it existed."""
        preflight.require_root()
        layout = Layout(name, self._root)
        with state.locked(layout):
            return cleanup.remove(layout, progress)

    def names(self) -> list[str]:
        """The clusters that have left anything on this machine."""
        return state.names(self._root)


def first_images(names: Sequence[str], binaries: Binaries, progress: Progress) -> Images:
    """These images, as nodes get them at their start."""
    archives = list(ensure_images(progress, list(names)).values())
    return Images(archives, prepared_store(archives, binaries, progress))


def compile_driver(progress: Progress) -> None:
    """Have the simulated driver's libraries in the cache."""
    try:
        with progress.step("compiling the simulated driver"):
            compiled()
    except BuildError as error:
        raise ClusterError(f"the simulated driver cannot be compiled: {error}") from error
