import tomllib
from pathlib import Path
from typing import Any

import pytest

from cluster import node_config
from cluster.credentials import Credentials, make
from cluster.layout import Layout
from cluster.node_config import Machine

USUAL = Machine(may_lower_oom_score=True, bridge_filter=True)
POOR = Machine(may_lower_oom_score=False, bridge_filter=False)


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    layout = Layout("demo", tmp_path)
    layout.make()
    return make(layout, ["node-1"])


def containerd(version: tuple[int, int]) -> Any:
    """Tables of that containerd's plugins."""
    where = Path("/opt/cni bin"), Path("/etc/cni"), Path("/etc/nvidia")
    config = tomllib.loads(node_config.containerd(*where, POOR, version))
    assert config["version"] == (3 if version >= (2, 0) else 2)
    return config["plugins"]


@pytest.mark.parametrize("version", [(1, 7), (2, 0), (2, 1), (2, 2), (2, 10)])
def test_containerds_configuration_is_toml_with_nri_and_cdi_on(version: tuple[int, int]) -> None:
    plugins = containerd(version)
    runtime = plugins["io.containerd." + ("cri.v1.runtime" if version >= (2,) else "grpc.v1.cri")]
    assert runtime["enable_cdi"] is True
    nvidia = runtime["containerd"]["runtimes"]["nvidia"]
    assert nvidia["options"]["BinaryName"] == "/etc/nvidia"
    assert plugins["io.containerd.nri.v1.nri"]["disable"] is False
    assert runtime["restrict_oom_score_adj"] is True


@pytest.mark.parametrize("version", [(1, 7), (2, 0)])
def test_an_old_containerd_knows_one_folder_of_cni_plugins(version: tuple[int, int]) -> None:
    (runtime,) = (one for one in containerd(version).values() if "cni" in one)
    assert runtime["cni"] == {"bin_dir": "/opt/cni bin", "conf_dir": "/etc/cni"}


def test_containerds_configuration_names_the_pause_image() -> None:
    new, old = containerd((2, 2)), containerd((1, 7))
    pause = "localhost/mizar/pause:dev"
    assert new["io.containerd.cri.v1.runtime"]["cni"]["bin_dirs"] == ["/opt/cni bin"]
    assert new["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": pause}
    assert old["io.containerd.grpc.v1.cri"]["sandbox_image"] == pause


def test_each_kubelet_has_a_cgroup_root_of_its_own(credentials: Credentials) -> None:
    config = node_config.kubelet(credentials, "node-1", "/mizar-cluster-demo/node-1", Path("/r"))
    assert config["cgroupRoot"] == "/mizar-cluster-demo/node-1"
    assert config["authentication"]["anonymous"]["enabled"] is False
    assert config["tlsCertFile"].endswith("node-1.crt")


def test_a_root_without_the_capability_does_not_lower_oom_scores() -> None:
    assert node_config.oom_score(USUAL) == {}
    assert node_config.oom_score(POOR) == {"oomScoreAdj": 0}


def test_services_hide_their_clients_only_where_they_must(credentials: Credentials) -> None:
    for machine in (USUAL, POOR):
        proxy = node_config.kube_proxy(credentials, "node-1", machine, 36)
        assert proxy["nftables"]["masqueradeAll"] is not machine.bridge_filter
        assert proxy["mode"] == "nftables"


def test_an_old_proxy_is_told_to_use_nftables(credentials: Credentials) -> None:
    gates = {
        minor: node_config.kube_proxy(credentials, "node-1", USUAL, minor).get("featureGates")
        for minor in (30, 31)
    }
    assert gates == {30: {"NFTablesProxyMode": True}, 31: None}


def test_pods_get_addresses_from_their_nodes_subnet() -> None:
    bridge, port_map = node_config.cni("10.244.7.0/24")["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.7.0/24"}]]
    assert port_map["capabilities"] == {"portMappings": True}
