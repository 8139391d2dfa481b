import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from cluster.binaries import hosts, release
from cluster.binaries.components import ARCH, COMPONENTS, KUBERNETES_HOST, Component
from cluster.binaries.errors import NotAvailable
from cluster.binaries.progress import Progress
from cluster.binaries.release import Limits, checksum_of
from support.waiting import PATIENCE_S

from .conftest import ReleaseServer

KUBELET = f"/release/v1.36.3/bin/linux/{ARCH}/kubelet"
ETCD = f"/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-{ARCH}.tar.gz"


def fetch(component: Component, into: Path, silence: float = PATIENCE_S) -> None:
    release.fetch(component, into, Progress.silent(), Limits(silence, file=PATIENCE_S))


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda one: one.name)
def test_every_component_can_come_from_its_release(
    component: Component, server: ReleaseServer, into: Path
) -> None:
    server.publish(component)
    fetch(component, into)
    assert sorted(path.name for path in into.iterdir()) == sorted(component.programs)
    for name in component.programs:
        assert (into / name).read_text() == f"#!/bin/sh\necho {name}\n"
        assert (into / name).stat().st_mode & 0o777 == 0o755


def test_the_layout_is_the_official_one(
    server: ReleaseServer, kubernetes: Component, into: Path
) -> None:
    server.publish(kubernetes)
    fetch(kubernetes, into)
    assert {KUBELET, f"{KUBELET}.sha256", ETCD, ETCD.rpartition("/")[0] + "/SHA256SUMS"} <= set(
        server.asked
    )


def test_a_wrong_checksum_is_refused(
    server: ReleaseServer, kubernetes: Component, into: Path
) -> None:
    server.publish(kubernetes)
    server.published[KUBELET] += b"# changed on the way"
    with pytest.raises(NotAvailable, match=f"{KUBELET} has the checksum .* it is not used"):
        fetch(kubernetes, into)
    assert not (into / "kubelet").exists()


def test_a_truncated_file_is_refused(
    server: ReleaseServer, kubernetes: Component, into: Path
) -> None:
    server.publish(kubernetes)
    server.cut.add(KUBELET)
    with pytest.raises(NotAvailable, match="kubelet"):
        fetch(kubernetes, into)
    assert not (into / "kubelet").exists()


def test_an_absent_file_is_named(server: ReleaseServer, kubernetes: Component, into: Path) -> None:
    server.publish(kubernetes)
    del server.published[KUBELET]
    with pytest.raises(NotAvailable, match=f"{server.url}{KUBELET} answers 404"):
        fetch(kubernetes, into)


def test_an_archive_without_the_program_is_refused(
    server: ReleaseServer, kubernetes: Component, into: Path
) -> None:
    server.publish(kubernetes)
    with tarfile.open(fileobj=(empty := io.BytesIO()), mode="w:gz"):
        pass
    server.published[ETCD] = empty.getvalue()
    folder = ETCD.rpartition("/")[0]
    server.published[f"{folder}/SHA256SUMS"] = _sums(ETCD, empty.getvalue())
    with pytest.raises(NotAvailable, match="is not the archive that it should be"):
        fetch(kubernetes, into)


def _sums(path: str, data: bytes) -> bytes:
    return f"{hashlib.sha256(data).hexdigest()}  {Path(path).name}\n".encode()


def test_a_server_that_falls_silent_is_given_up(
    hanging: str, kubernetes: Component, into: Path
) -> None:
    with pytest.raises(NotAvailable, match=f"{hanging}{KUBELET[:10]}.*timed out"):
        fetch(kubernetes, into, silence=0.2)


def test_a_host_that_answers_is_not_silent(server: ReleaseServer) -> None:
    assert hosts.silent([KUBERNETES_HOST], within=PATIENCE_S) == {}


def test_a_hanging_host_is_found_out_in_time(hanging: str) -> None:
    assert set(hosts.silent([KUBERNETES_HOST], within=0.2)) == {KUBERNETES_HOST}


def test_a_closed_port_is_found_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KUBERNETES_HOST.variable, "http://127.0.0.1:1")
    reason = hosts.silent([KUBERNETES_HOST], within=PATIENCE_S)[KUBERNETES_HOST]
    assert "refused" in reason


HEX = "a" * 64


@pytest.mark.parametrize(
    "text", [HEX, f"{HEX}\n", f"{HEX}  file\n", f"{'b' * 64}  other\n{HEX} *file\n", HEX.upper()]
)
def test_checksum_files(text: str) -> None:
    assert checksum_of("file", text) == HEX


@pytest.mark.parametrize("text", ["", "<html>not found</html>", f"{HEX}  other", "abc  file"])
def test_no_checksum_is_no_download(text: str) -> None:
    with pytest.raises(NotAvailable, match="no checksum of file"):
        checksum_of("file", text)
