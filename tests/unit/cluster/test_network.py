from cluster import network


def test_one_node_has_a_bridge_and_a_route_for_cluster_addresses() -> None:
    lines = network.first_node(1)
    assert "link add nodes0 type bridge" in lines
    assert "route add default dev nodes0" in lines
    assert not [line for line in lines if "10.244." in line]


def test_each_node_routes_the_pods_of_all_others() -> None:
    assert [line for line in network.first_node(3) if "10.244." in line] == [
        "route add 10.244.2.0/24 via 172.20.0.2",
        "route add 10.244.3.0/24 via 172.20.0.3",
    ]
    assert [line for line in network.other_node(2, 3) if "10.244." in line] == [
        "route add 10.244.1.0/24 via 172.20.0.1",
        "route add 10.244.3.0/24 via 172.20.0.3",
    ]


def test_a_node_is_joined_to_the_first_ones_bridge() -> None:
    assert network.join(2, 4711) == [
        "link add node2 type veth peer name eth0 netns 4711",
        "link set node2 master nodes0 up",
    ]
