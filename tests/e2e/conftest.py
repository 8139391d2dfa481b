"""One local cluster for the run, and for each test a tenant with its own namespaces.

MIZAR_E2E_CLUSTER=name reuses a cluster that is up (`make up`), which saves time while writing
tests.

A watcher looks at all nodes while the tests run. What it finds fails the test that ran; a test that
takes a card from its users on purpose says so by the fixture `expected_faults`.
"""

import json
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

import cluster.mizar
from cluster import Cluster, ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from e2e import component_logs
from e2e.card_access import CDI, CLASS, Access, cdi_file, minors
from e2e.watcher import reports, watching, working
from e2e.watching import rare
from support import objects
from support.kube import Kube, Object
from support.logs import SECTION
from support.waiting import wait_for

CARDS_PER_NODE = 2
CRI_O = os.environ.get("MIZAR_CRIO", "")
"""The version of the CRI-O on the nodes; empty for containerd."""
NVIDIA_PLUGIN = os.environ.get("MIZAR_NVIDIA_PLUGIN", "")
"""The version of NVIDIA's own device plugin on the nodes; empty for the stand-in."""


@pytest.fixture(scope="session")
def mizar_cluster() -> Iterator[Cluster]:
    """Two nodes of two simulated cards each, Mizar installed from its chart."""
    if name := os.environ.get("MIZAR_E2E_CLUSTER"):
        up = LocalProvider().get(name)
        with watching(up):
            yield up
        return
    spec = ClusterSpec(
        name=f"e2e-{os.getpid()}",
        nodes=2,
        cards=CARDS_PER_NODE,
        cri_o=CRI_O,
        nvidia_plugin=NVIDIA_PLUGIN,
    )
    up = LocalProvider().up(spec, Progress())
    try:
        cluster.mizar.install(up, Progress())
        with watching(up):
            yield up
    finally:
        up.down()


@pytest.fixture
def possible_faults() -> list[str]:
    """A test that may cause faults, depending on where pods go and when they end, adds to this list
    words that the faults' messages contain."""
    return []


@pytest.fixture(autouse=True)
def expected_faults(possible_faults: list[str]) -> Iterator[list[str]]:
    """A test that causes faults takes this list, adds words that the faults' messages contain, and
    must cause them. All other tests fail if the watchers found a fault."""
    expected: list[str] = []
    yield expected
    found = [fault for watcher in working for fault in watcher.found()]
    known = [*expected, *possible_faults]
    assert not [fault for fault in found if not any(word in fault for word in known)]
    missed = [word for word in expected if not any(word in fault for fault in found)]
    assert not missed, f"the watchers saw nothing of {missed}, only {found}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what Mizar logged meanwhile, and its pods, to the report of a failure."""
    report = yield
    used = getattr(item, "funcargs", {}).values()
    if report.failed:
        for one in {one.name: one for one in used if isinstance(one, Cluster)}.values():
            found = {
                "logs": component_logs.recent(one, call.start),
                "pods": component_logs.state(one),
            }
            report.sections += [
                (f"{SECTION}{what} in {one.name}", text) for what, text in found.items()
            ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how often the watchers looked, and what was unusual."""
    for report in reports:
        terminalreporter.line(f"watched {report}")
    for one in rare:
        terminalreporter.line(f"a borrower was refused at its start and made again:\n{one}")


@pytest.fixture(scope="session")
def kube(mizar_cluster: Cluster) -> Kube:
    """kubectl on the cluster."""
    return Kube(mizar_cluster)


@dataclass
class Stage:
    """What one test makes: tenants (namespaces) and pools of its own. All of it is deleted at the
    end."""

    kube: Kube
    mark: str = field(default_factory=lambda: uuid4().hex[:5])
    tenants: list[str] = field(default_factory=list)
    pools: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    def pool(self, **spec: object) -> str:
        """A pool of this test; quotas name it."""
        name = f"pool-{self.mark}-{len(self.pools)}"
        self.pools.append(name)
        self.kube.apply(objects.pool(name, **spec))
        return name

    def priority_class(self, name: str, value: int) -> str:
        """A PriorityClass of this test, whose pods may preempt others; returns its full name."""
        full = f"{name}-{self.mark}"
        self.classes.append(full)
        self.kube.apply(objects.priority_class(full, value))
        return full

    def tenant(self, *profiles: Object, pool: str | None = None, **quota: object) -> str:
        """A namespace. It has a quota for these profiles, or for what else is given, if anything
        is."""
        name = f"t{len(self.tenants)}-{self.mark}"
        self.tenants.append(name)
        self.kube.apply(objects.namespace(name))
        if profiles or quota:
            self.kube.apply(objects.quota(name, *profiles, pool=pool or self.pool(), **quota))
        self.kube.wait_namespaces(name)
        return name

    def clear(self) -> None:
        """Delete everything, and wait until the cards are free again, whole cards as well.

        Users are deleted first: shadow pods that are deleted with their namespace keep their cards
        for a while. Nothing waits for the namespaces, which Kubernetes keeps for six seconds: no
        later test uses their names.
        """
        for tenant in self.tenants:
            self._end_users(tenant)
        for tenant in self.tenants:
            for kind in ("shadowpods", "pods"):
                wait_for(
                    f"the {kind} of {tenant} to go",
                    lambda kind=kind, t=tenant: not self.kube.all(kind, t),  # type: ignore[misc]
                    timeout=240,
                )
        for tenant in self.tenants:
            self.kube.run("delete", "namespace", tenant, "--wait=false", "--ignore-not-found")
        for pool in self.pools:
            self.kube.delete("gpupool", pool)
        for name in self.classes:
            self.kube.delete("priorityclass", name)

    def _end_users(self, tenant: str) -> None:
        if self.kube.get("namespace", tenant) is None:
            return
        here = (f"--namespace={tenant}", "--wait=false")
        self.kube.run("delete", "gpuquotas,deployments,daemonsets,jobs", "--all", *here)
        self.kube.run("delete", "pods", f"--selector={objects.SHARE_PODS}", *here)


@pytest.fixture
def stage(kube: Kube) -> Iterator[Stage]:
    """An empty stage; whatever a test puts on it is deleted when the test ends."""
    stage = Stage(kube)
    try:
        yield stage
    finally:
        stage.clear()


@pytest.fixture(scope="module")
def access(kube: Kube, mizar_cluster: Cluster) -> Iterator[Access]:
    """Changes the way; at the end it is again as in the chart's values for local clusters."""
    kube.apply(CLASS)
    made = Access(kube, mizar_cluster)
    try:
        yield made
    finally:
        # Agents that have chosen CDI would keep it without CDI files, and not become ready.
        made.use(wait=False, strategy="Mounts")
        made.use(strategy="Auto", nriGives="Auto", passDeviceSpecs=False)
        kube.delete("runtimeclass", "nvidia")


@pytest.fixture
def cdi(mizar_cluster: Cluster) -> Iterator[None]:
    """CDI files with the nodes' cards exist while the test runs: Auto would choose CDI for them."""
    for node in mizar_cluster.nodes:
        path = node.path(CDI)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cdi_file(minors(node))))
    yield
    for node in mizar_cluster.nodes:
        node.path(CDI).unlink(missing_ok=True)
