"""Every example works as its README says: applied as it is, all of its pods run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.kube import Kube, is_ready
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FOLDERS = sorted(Path(__file__).parents[2].glob("examples/[0-9]*"))


def namespaces(folder: Path) -> set[str]:
    """The namespaces that the example makes."""
    documents = (
        one for path in folder.glob("*.yaml") for one in yaml.safe_load_all(path.read_text())
    )
    return {one["metadata"]["name"] for one in documents if one["kind"] == "Namespace"}


def wanted_pods(folder: Path) -> int:
    """How many pods the example asks for, replicas counted."""
    documents = [
        one for path in folder.glob("*.yaml") for one in yaml.safe_load_all(path.read_text())
    ]
    replicas = sum(one["spec"]["replicas"] for one in documents if one["kind"] == "Deployment")
    return int(replicas + sum(one["kind"] == "Pod" for one in documents))


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def example(request: pytest.FixtureRequest, kube: Kube) -> Iterator[Path]:
    """An example's folder; what it made goes at the end."""
    folder: Path = request.param
    yield folder
    kube.run("delete", f"--filename={folder}", "--ignore-not-found", "--wait=false")
    for name in namespaces(folder):
        kube.wait_gone("namespace", "", name, timeout=180)


def test_example(kube: Kube, example: Path) -> None:
    """kubectl apply of the folder is enough."""
    kube.apply(example)

    def all_run() -> bool:
        pods = [
            pod
            for name in namespaces(example)
            for pod in kube.all("pods", name, "!mizar.share/shadow-pod")
        ]
        assert len(pods) == wanted_pods(example), f"{len(pods)} pods"
        return all(is_ready(pod) for pod in pods)

    wait_for(f"the pods of {example.name} to run", all_run, timeout=180)
