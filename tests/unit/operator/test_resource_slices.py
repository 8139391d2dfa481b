"""What the operator reads of ResourceSlices and DeviceClasses."""

from __future__ import annotations

from mizar_core.planning.snapshot import CardsOnNode
from mizar_operator.resource_slices import (
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


def test_whole_cards_are_counted_with_their_model_and_memory() -> None:
    found = view(resource_slice("n1", device(0), device(1)))
    assert (found.node, found.pool, found.names) == ("n1", "n1", {"gpu-0", "gpu-1"})
    assert found.cards == CardsOnNode(2, 2, A100, 40960)


def test_names_may_have_the_drivers_domain() -> None:
    """It is what they mean without one, for the scheduler and for node agents too."""
    full = device(0)
    for values in ("attributes", "capacity"):
        full[values] = {f"gpu.nvidia.com/{name}": one for name, one in full[values].items()}
    assert view(resource_slice("n1", full)).cards == CardsOnNode(1, 1, A100, 40960)


def test_other_devices_are_no_cards() -> None:
    mixed = resource_slice("n1", device(0), device(1, kind="mig"), device(2, kind="vfio"))
    assert view(mixed).names == {"gpu-0"}
    counters = resource_slice("n1")
    del counters["spec"]["devices"]
    assert view(counters).cards == CardsOnNode(0, 0)
    assert cards_together([view(counters)]) is None


def test_a_taint_makes_a_card_fail_by_its_effect() -> None:
    devices = (device(0, "NoSchedule"), device(1, "None", "NoExecute"), device(2, "None"))
    assert view(resource_slice("n1", *devices)).cards == CardsOnNode(3, 1, A100, 40960)


def test_cards_of_several_models_have_none() -> None:
    other = device(1, product="Tesla T4", memory="16106127360")
    assert view(resource_slice("n1", device(0), other)).cards == CardsOnNode(2, 2, "", 40960)
    apart = [resource_slice("n1", one, name=f"s{number}") for number, one in enumerate([other])]
    together = cards_together(map(view, [*apart, resource_slice("n1", device(0))]))
    assert together == CardsOnNode(2, 2, "", 40960)


def test_memory_that_cannot_be_read_is_not_known() -> None:
    assert view(resource_slice("n1", device(0, memory="much"))).cards.mib == 0
    bare = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    assert view(resource_slice("n1", bare)).cards == CardsOnNode(1, 1)


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
    assert cards_together(map(view, [old, *new])) == CardsOnNode(3, 3, A100, 40960)


def test_the_resource_of_a_class() -> None:
    assert extended_resource(device_class()) == "nvidia.com/gpu"
    assert extended_resource(device_class(None)) is None
