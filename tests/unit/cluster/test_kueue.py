"""Kueue is installed by its own manifests, with this machine's image and the tests' settings."""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from cluster import kueue
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress

SETTINGS = {
    "kind": "ConfigMap",
    "metadata": {"name": kueue.SETTINGS},
    "data": {kueue.SETTINGS_FILE: "health: {}\n"},
}
DEPLOYMENT = """
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: manager
        image: example.com/kueue/kueue:main
        imagePullPolicy: Always
        resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}
"""


class FakeCluster:
    """A cluster whose kubectl gives these manifests and remembers what is applied."""

    def __init__(self, manifests: str) -> None:
        self.manifests = manifests
        self.applied: list[Any] = []

    def load_image(self, archive: Path) -> None:
        assert archive.name == "image.tar"

    def kubectl(self, *args: str, input: str | None = None) -> CompletedProcess[str]:
        if args[0] == "apply":
            self.applied = list(yaml.safe_load_all(input or ""))
        return CompletedProcess(args, 0, self.manifests if args[0] == "kustomize" else "", "")


def test_the_manifests_get_the_image_and_the_settings(tmp_path: Path) -> None:
    cluster = FakeCluster(f"{yaml.safe_dump(SETTINGS)}---{DEPLOYMENT}")
    kueue.install(cluster, tmp_path, "resources: {}\n")  # type: ignore[arg-type]
    settings, deployment = cluster.applied
    assert settings["data"][kueue.SETTINGS_FILE] == "health: {}\nresources: {}\n"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == kueue.IMAGE and container["imagePullPolicy"] == "Never"
    assert container["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}


def test_other_manifests_than_expected_are_refused(tmp_path: Path) -> None:
    cluster = FakeCluster(yaml.safe_dump(SETTINGS))
    with pytest.raises(SetupError, match="not as expected"):
        kueue.install(cluster, tmp_path, "")  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["0.17.0", "v0.17", "main"])
def test_a_name_that_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(SetupError, match=r"write it as in v0\.17\.0"):
        kueue.build(version, Progress.silent())
