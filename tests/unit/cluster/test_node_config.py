import tomllib
from pathlib import Path

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


def test_containerds_configuration_is_toml_with_nri_and_cdi_on() -> None:
    text = node_config.containerd(Path("/opt/cni bin"), Path("/etc/cni"), Path("/etc/nvidia"), POOR)
    plugins = tomllib.loads(text)["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert runtime["enable_cdi"] is True
    nvidia = runtime["containerd"]["runtimes"]["nvidia"]
    assert nvidia["options"]["BinaryName"] == "/etc/nvidia"
    assert plugins["io.containerd.nri.v1.nri"]["disable"] is False
    assert runtime["cni"]["bin_dirs"] == ["/opt/cni bin"]
    assert runtime["restrict_oom_score_adj"] is True
    images = plugins["io.containerd.cri.v1.images"]
    assert images["pinned_images"] == {"sandbox": "localhost/mizar/pause:dev"}


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
