"""Mizar is upgraded from an earlier commit, which $MIZAR_UPGRADE_FROM names, and rolled back to it:
`make upgrade-from FROM=COMMIT`. It is no part of `make e2e`: it needs a checkout with history, and
the commit's own `make up`, which may have to build Kubernetes first.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from bench.figures import ROOT
from cluster import Cluster
from cluster.local_provider import LocalProvider
from e2e.test_upgrade import check_upgrade
from e2e.watcher import watching
from support.kube import Kube

if TYPE_CHECKING:
    from e2e.conftest import Stage

VARIABLE = "MIZAR_UPGRADE_FROM"
LONGEST_S = 1500.0
"""Seconds for each command of the earlier commit."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2 * LONGEST_S)]


@pytest.fixture(scope="module")
def earlier() -> Iterator[Cluster]:
    """A cluster of two nodes with the earlier commit's Mizar."""
    commit = os.environ.get(VARIABLE)
    if not commit:
        pytest.skip(f"${VARIABLE} names no commit")
    name = f"upgrade-{os.getpid()}"
    with TemporaryDirectory(prefix="mizar-earlier-") as folder:
        run = runner(folder)
        run("git", "clone", "--quiet", "--no-checkout", str(ROOT), ".")
        run("git", "checkout", "--quiet", commit)
        try:
            run("make", "up", f"NAME={name}", "NODES=2")
            up = LocalProvider().get(name)
            with watching(up):
                yield up
        finally:
            run("make", "down", f"NAME={name}")


def runner(folder: str) -> Callable[..., None]:
    """What runs a command in the folder, and raises subprocess.SubprocessError if that fails or
    takes longer than LONGEST_S."""

    def run(*words: str) -> None:
        subprocess.run(words, cwd=folder, check=True, timeout=LONGEST_S)

    return run


@pytest.fixture(scope="module")
def kube(earlier: Cluster) -> Kube:
    return Kube(earlier)


def test_running_pods_do_not_notice_an_upgrade_from_an_earlier_commit(
    kube: Kube, stage: "Stage", earlier: Cluster, tmp_path: Path
) -> None:
    check_upgrade(kube, stage, earlier, tmp_path)
