"""What the operator reads of ResourceSlices and DeviceClasses."""

from __future__ import annotations

from mizar_core.planning.snapshot import CardsOnNode
from mizar_operator.resource_slices import (
    Devices,
    SliceView,
    cards_together,
    extended_resource,
    slice_view,
)
from unit.operator.slices import Object, device, device_class, resource_slice

A100 = "NVIDIA-A100-SXM4-40GB"


def view(obj: Object) -> SliceView:
    found = slice_view(obj)
    assert found is not None
    return found


def whole(obj: Object) -> CardsOnNode:
    """The slice's cards, which are all that it has."""
    (found,) = view(obj).devices
    assert found.resource == "nvidia.com/gpu"
    return found.cards


def test_whole_cards_are_counted_with_their_model_and_memory() -> None:
    found = view(resource_slice("n1", device(0), device(1)))
    assert (found.node, found.pool) == ("n1", "n1")
    cards = CardsOnNode(2, 2, A100, 40960)
    assert found.devices == (Devices("nvidia.com/gpu", frozenset({"gpu-0", "gpu-1"}), cards),)


def test_mig_devices_are_cards_of_their_size() -> None:
    """Their resources are those of NVIDIA's device plugin with strategy mixed."""
    small = [device(one, kind="mig", profile="1g.5gb", memory="4864Mi") for one in (1, 2)]
    other = device(3, kind="mig", profile="1g.5gb+me", memory="4864Mi")
    found = view(resource_slice("n1", device(0), *small, other))
    assert {one.resource: (one.names, one.cards) for one in found.devices} == {
        "nvidia.com/gpu": ({"gpu-0"}, CardsOnNode(1, 1, A100, 40960)),
        "nvidia.com/mig-1g.5gb": (
            {"gpu-1", "gpu-2"},
            CardsOnNode(2, 2, f"{A100}-MIG-1g.5gb", 4864),
        ),
        "nvidia.com/mig-1g.5gb.me": (
            {"gpu-3"},
            CardsOnNode(1, 1, f"{A100}-MIG-1g.5gb+me", 4864),
        ),
    }
    assert cards_together([found])["nvidia.com/mig-1g.5gb"].total == 2


def test_a_mig_device_that_is_yet_to_be_made_is_no_card() -> None:
    """The driver would make it on demand, and its card is offered as well."""
    coming = device(1, kind="mig", profile="1g.5gb")
    del coming["attributes"]["uuid"]
    assert whole(resource_slice("n1", device(0), coming)).total == 1


def test_names_may_have_the_drivers_domain() -> None:
    """It is what they mean without one, for the scheduler and for node agents too."""
    full = device(0)
    for values in ("attributes", "capacity"):
        full[values] = {f"gpu.nvidia.com/{name}": one for name, one in full[values].items()}
    assert whole(resource_slice("n1", full)) == CardsOnNode(1, 1, A100, 40960)


def test_other_devices_are_no_cards() -> None:
    mixed = resource_slice("n1", device(0), device(1, kind="mig"), device(2, kind="vfio"))
    assert whole(mixed).total == 1, "a MIG device without a size is of no use"
    counters = resource_slice("n1")
    del counters["spec"]["devices"]
    assert view(counters).devices == ()
    assert cards_together([view(counters)]) == {}


def test_a_taint_makes_a_card_fail_by_its_effect() -> None:
    devices = (device(0, "NoSchedule"), device(1, "None", "NoExecute"), device(2, "None"))
    assert whole(resource_slice("n1", *devices)) == CardsOnNode(3, 1, A100, 40960)


def test_cards_of_several_models_have_none() -> None:
    other = device(1, product="Tesla T4", memory="16106127360")
    assert whole(resource_slice("n1", device(0), other)) == CardsOnNode(2, 2, "", 40960)
    apart = [resource_slice("n1", one, name=f"s{number}") for number, one in enumerate([other])]
    together = cards_together(map(view, [*apart, resource_slice("n1", device(0))]))
    assert together == {"nvidia.com/gpu": CardsOnNode(2, 2, "", 40960)}


def test_memory_that_cannot_be_read_is_not_known() -> None:
    assert whole(resource_slice("n1", device(0, memory="much"))).mib == 0
    bare = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    assert whole(resource_slice("n1", bare)) == CardsOnNode(1, 1)


def test_slices_of_other_drivers_and_of_no_node_are_left_out() -> None:
    other = resource_slice("n1", device(0))
    other["spec"]["driver"] = "nic.example.com"
    assert slice_view(other) is None
    nowhere = resource_slice("n1", device(0))
    del nowhere["spec"]["nodeName"]
    assert slice_view(nowhere) is None


def test_the_newest_generation_of_a_pool_counts_alone() -> None:
    old = resource_slice("n1", device(0), device(1), name="old")
    new = [resource_slice("n1", device(one), name=f"new-{one}", generation=2) for one in range(3)]
    found = cards_together(map(view, [old, *new]))
    assert found == {"nvidia.com/gpu": CardsOnNode(3, 3, A100, 40960)}


def test_the_resource_of_a_class() -> None:
    assert extended_resource(device_class()) == "nvidia.com/gpu"
    assert extended_resource(device_class(None)) is None
