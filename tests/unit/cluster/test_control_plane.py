from pathlib import Path

import pytest

from cluster import control_plane
from cluster.credentials import Credentials, make
from cluster.layout import Layout


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    layout = Layout("demo", tmp_path_factory.mktemp("root"))
    layout.make()
    return make(layout, ["node-1"])


def files(argv: list[str]) -> list[Path]:
    """The files that options name."""
    values = [option.partition("=")[2] for option in argv]
    return [Path(value) for value in values if value.startswith("/") and "pki" in value]


def test_every_file_that_is_named_is_there(credentials: Credentials) -> None:
    for render in (
        control_plane.api_server,
        control_plane.controller_manager,
        control_plane.scheduler,
    ):
        named = files(render(credentials))
        assert named
        assert [one for one in named if not one.is_file()] == []


def test_the_api_server_authorizes_as_in_a_real_cluster(credentials: Credentials) -> None:
    argv = control_plane.api_server(credentials)
    assert "--authorization-mode=Node,RBAC" in argv
    assert "--enable-admission-plugins=NodeRestriction" in argv
    assert "--advertise-address=172.20.0.1" in argv


def test_the_scheduler_schedules_as_it_does_anywhere(credentials: Credentials) -> None:
    options = {option.partition("=")[0] for option in control_plane.scheduler(credentials)}
    assert options == {
        "--kubeconfig",
        "--authentication-kubeconfig",
        "--authorization-kubeconfig",
        "--leader-elect",
        "--bind-address",
    }


def test_etcd_listens_inside_only(tmp_path: Path) -> None:
    urls = [option for option in control_plane.etcd(tmp_path) if "-urls=" in option]
    assert urls
    assert all("//127.0.0.1:" in url for url in urls)
