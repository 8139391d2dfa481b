"""Programs that are built from Go modules. cert-manager and KubeRay run with a new cluster's
kubeconfig."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cluster import cert_manager, kuberay, nvidia_toolkit
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress
from cluster.processes import Processes

BOTH = pytest.mark.parametrize("module", [cert_manager, kuberay])


@pytest.mark.parametrize("module", [cert_manager, kuberay, nvidia_toolkit])
@pytest.mark.parametrize("version", ["1.5.0", "v1.5", "main"])
def test_a_name_that_is_no_version_is_refused(module: ModuleType, version: str) -> None:
    build: Callable[[str, Progress], Path] = module.build
    with pytest.raises(SetupError, match="write it as in v1"):
        build(version, Progress.silent())


class FakeCluster:
    """A cluster whose kubectl remembers its arguments."""

    name = "fake"
    kubeconfig = Path("/its/kubeconfig")

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def kubectl(self, *args: str) -> None:
        self.calls.append(args)


@BOTH
def test_its_definitions_exist_before_it_starts(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "one.yaml").touch()
    cluster, started = FakeCluster(), []

    def run(_: Processes, name: str, argv: list[str], env: dict[str, str]) -> None:
        assert cluster.calls[0][2] == f"--filename={tmp_path}/crds/one.yaml"
        assert cluster.calls[-1][:2] == ("wait", "--for=condition=Established")
        started.append((name, argv[0], env["KUBECONFIG"]))

    monkeypatch.setattr(Processes, "run", run)
    start: Callable[[Any, Path], object] = module.start
    start(cluster, tmp_path)
    name = module.PROCESS
    assert started == [(name, f"{tmp_path}/{name}", "/its/kubeconfig")]
