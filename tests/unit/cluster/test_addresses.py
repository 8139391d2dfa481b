import ipaddress

from cluster import addresses


def test_every_node_has_an_address_and_a_subnet_of_its_own() -> None:
    numbers = range(1, 65)
    ips = [ipaddress.ip_address(addresses.node_ip(number)) for number in numbers]
    subnets = [ipaddress.ip_network(addresses.pod_subnet(number)) for number in numbers]
    assert len(set(ips)) == len(set(subnets)) == 64
    assert all(ip in addresses.NODE_NET for ip in ips)
    assert all(subnet.subnet_of(addresses.POD_NET) for subnet in subnets)  # type: ignore[arg-type]


def test_the_networks_do_not_overlap() -> None:
    nets = [addresses.NODE_NET, addresses.POD_NET, addresses.SERVICE_NET]
    assert not any(a.overlaps(b) for a in nets for b in nets if a is not b)


def test_the_service_kubernetes_has_the_first_address() -> None:
    assert addresses.api_service_ip() == "10.96.0.1"
