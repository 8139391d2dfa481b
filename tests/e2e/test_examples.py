"""Every example works as its README says: applied as it is, all of its pods run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from cluster import Cluster
from e2e.dividing import by_size, divided
from mizar_core.names import is_mig
from support.kube import Kube, Object, is_ready
from support.objects import SHARE_PODS
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FOLDERS = sorted(Path(__file__).parents[2].glob("examples/[0-9]*"))


def manifests(folder: Path) -> list[Object]:
    """All objects of the example."""
    return [one for path in folder.glob("*.yaml") for one in yaml.safe_load_all(path.read_text())]


def namespaces(folder: Path) -> set[str]:
    """The namespaces that the example makes."""
    return {one["metadata"]["name"] for one in manifests(folder) if one["kind"] == "Namespace"}


def wanted_pods(folder: Path) -> int:
    """How many pods the example asks for, replicas counted."""
    wanted = manifests(folder)
    replicas = sum(one["spec"].get("replicas", 1) for one in wanted if one["kind"] == "Deployment")
    return int(replicas + sum(one["kind"] in ("Pod", "Job") for one in wanted))


@pytest.fixture
def node_for(mizar_cluster: Cluster, kube: Kube) -> Iterator[Callable[[Path], None]]:
    """Divides cards of a node by MIG where an example's pools take MIG devices."""
    with ExitStack() as stack:

        def prepare(folder: Path) -> None:
            for one in manifests(folder):
                resource = one["spec"].get("physicalResource", "") if "spec" in one else ""
                if size := resource.removeprefix(by_size("")) if is_mig(resource) else "":
                    stack.enter_context(divided(kube, mizar_cluster.nodes[-1], "mixed", [size]))

        yield prepare


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def example(
    request: pytest.FixtureRequest, kube: Kube, node_for: Callable[[Path], None]
) -> Iterator[Path]:
    """An example's folder; what the example made is deleted at the end."""
    folder: Path = request.param
    node_for(folder)
    yield folder
    kube.run("delete", f"--filename={folder}", "--ignore-not-found", "--wait=false")
    for name in namespaces(folder):
        kube.wait_gone("namespace", "", name, timeout=180)


def test_example(kube: Kube, example: Path) -> None:
    """kubectl apply of the folder is enough."""
    kube.apply(example)

    def all_run() -> bool:
        pods = [pod for name in namespaces(example) for pod in kube.all("pods", name, SHARE_PODS)]
        assert len(pods) == wanted_pods(example), f"{len(pods)} pods"
        return all(is_ready(pod) for pod in pods)

    wait_for(f"the pods of {example.name} to run", all_run, timeout=180)
