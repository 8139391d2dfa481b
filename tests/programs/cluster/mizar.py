"""Installs Mizar into a cluster as its users do: with its Helm chart and its container images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from cluster.binaries.progress import Progress, Step
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.images import CUDA_SAMPLE, NODEAGENT, OPERATOR, PAUSE, ensure_images
from cluster.rollout import diagnosis, pending, workloads

RELEASE, NAMESPACE = "mizar", "mizar-system"
IMAGES = (OPERATOR, NODEAGENT, CUDA_SAMPLE, PAUSE)
CHART = Path(__file__).parents[3] / "charts" / "mizar"
LOCAL_VALUES = CHART / "values-local.yaml"
LIMIT = 300.0  # seconds
INTERVAL = 0.2
CONTENT = "mizar.share/image-content"


def install(cluster: Cluster, progress: Progress, values: Path = LOCAL_VALUES) -> None:
    """Install Mizar, or bring it up to date; it works on return.

    The images are those of the working tree. Raises ClusterError, saying which pods are not ready
    and why, with their last log lines, if they are not within LIMIT seconds.
    """
    archives = ensure_images(progress, list(IMAGES))
    with progress.step("loading Mizar's images"):
        for archive in archives.values():
            cluster.load_image(archive)
    with progress.step("installing Mizar") as step:
        _apply_chart(cluster, archives, values)
        _wait(cluster, step)


def _apply_chart(cluster: Cluster, archives: Mapping[str, Path], values: Path) -> None:
    if _is_installed(cluster):  # helm leaves the definitions of an earlier version alone
        crds = f"--filename={CHART / 'crds'}"
        cluster.kubectl("apply", "--server-side", "--force-conflicts", crds)
    cluster.helm(
        "upgrade",
        "--install",
        RELEASE,
        str(CHART),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        f"--values={values}",
        "--values=-",
        input=yaml.safe_dump(content_values(archives)),
    )


def content_values(archives: Mapping[str, Path]) -> dict[str, object]:
    """Values that make pods start anew when their image has changed under the same name.

    An archive's folder is named after the content that it was made from.
    """
    images = {"operator": OPERATOR, "webhook": OPERATOR, "nodeagent": NODEAGENT}
    return {
        component: {"annotations": {CONTENT: archives[image].parent.name}}
        for component, image in images.items()
    }


def _is_installed(cluster: Cluster) -> bool:
    status = cluster.helm("status", RELEASE, f"--namespace={NAMESPACE}", check=False)
    return status.returncode == 0


def _wait(cluster: Cluster, step: Step) -> None:
    deadline = time.monotonic() + LIMIT
    while missing := pending(workloads(cluster, NAMESPACE)):
        step.note(f"waiting for {', '.join(missing)}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"Mizar was not ready within {LIMIT:.0f} s: waited for {', '.join(missing)}\n"
                f"{diagnosis(cluster, NAMESPACE)}"
            )
        time.sleep(INTERVAL)
