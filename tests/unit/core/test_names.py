"""Names and device IDs, against the examples that users see."""

import json

import pytest

from mizar_core import names
from mizar_core.device_ids import (
    DeviceID,
    card_of,
    cards_of_value,
    device_ids,
    devices_from_value,
    devices_of_value,
)
from mizar_core.errors import DeviceIDRefused, NameRefused
from mizar_core.models import Profile


def test_version_is_the_groups() -> None:
    assert f"{names.GROUP}/{names.VERSION}" == names.API_VERSION


def test_resources_are_written_as_documented() -> None:
    assert names.resource_name("mizar.share", 2) == "mizar.share/gpu.2"
    assert names.tenant_resource_name("team-a", "mizar.share", 2) == "team-a.mizar.share/gpu.2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mizar.share/gpu.2", names.ParsedResource("mizar.share", 2, "slashed")),
        ("mizar.share.gpu.16", names.ParsedResource("mizar.share", 16, "dotted")),
        ("team-a.mizar.share/gpu.4", names.ParsedResource("team-a.mizar.share", 4, "slashed")),
        ("gpu.corp.example/gpu.10", names.ParsedResource("gpu.corp.example", 10, "slashed")),
        ("nvidia.com/gpu", None),
        ("nvidia.com/gpu.shared", None),
        ("mizar.share/gpu.02", None),
        ("mizar.share/gpu.0", None),
        ("mizar.share/gpu.2/3", None),
        ("Mizar.share/gpu.2", None),
        ("mizar.share/gpu.2\n", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_resources_are_parsed(text: str, expected: names.ParsedResource | None) -> None:
    assert names.parse_resource(text) == expected


@pytest.mark.parametrize(
    ("prefix", "tenant"),
    [
        ("team-a.mizar.share", "team-a"),
        ("mizar.share", None),
        ("a.b.mizar.share", None),
        ("team-a.other.share", None),
    ],
)
def test_tenant_of_a_prefix(prefix: str, tenant: str | None) -> None:
    assert names.tenant_of(prefix, "mizar.share") == tenant


def test_a_namespace_that_kubernetes_would_misread_is_refused() -> None:
    with pytest.raises(NameRefused, match="use another name"):
        names.tenant_resource_name("requests", "mizar.share", 2)
    with pytest.raises(NameRefused, match="not a valid namespace name"):
        names.tenant_resource_name("Team.A", "mizar.share", 2)


def test_the_longest_tenant_resource_is_still_a_name() -> None:
    prefix = "a." * (names.PREFIX_MAX // 2) + "bb"
    prefix = prefix[: names.PREFIX_MAX].rstrip(".")
    full = "requests." + names.tenant_resource_name("n" * 63, prefix, 256)
    assert names.is_dns_subdomain(full.partition("/")[0])


def test_a_subdomain_has_253_characters_at_most() -> None:
    longest = ".".join(["x" * 63] * 3 + ["y" * 61])
    assert len(longest) == 253
    assert names.is_dns_subdomain(longest)
    assert not names.is_dns_subdomain(longest + "y")


def test_shadow_names_are_stable_and_short() -> None:
    name = names.shadow_name("uid-1", 2, 0)
    assert name == names.shadow_name("uid-1", 2, 0)
    assert name.startswith("shadow-2-") and len(name) == len("shadow-2-x7k4q")
    assert names.is_dns_label(name)
    assert len({names.shadow_name("uid-1", 2, sequence) for sequence in range(100)}) == 100


def test_device_ids_are_written_and_read_as_documented() -> None:
    device = DeviceID("team-a", "shadow-2-x7k4q", 0)
    assert str(device) == "team-a/shadow-2-x7k4q-0"
    assert DeviceID.parse("team-a/shadow-2-x7k4q-0") == device


@pytest.mark.parametrize(
    "text",
    ["", "a", "a/b", "a/b-", "a/b-01", "a/b-x", "/b-0", "a/-0", "a/b/c-0", "a/b-0\n", "A/b-0"],
)
def test_other_strings_are_no_devices(text: str) -> None:
    with pytest.raises(DeviceIDRefused):
        DeviceID.parse(text)


def test_devices_lie_on_cards_in_order() -> None:
    shape = Profile(devices=4, cards=2)
    assert [card_of(index, shape) for index in range(4)] == [0, 0, 1, 1]
    with pytest.raises(DeviceIDRefused, match="there are 4"):
        card_of(4, shape)


def test_annotations_are_those_of_the_runtime_component() -> None:
    assert names.container_devices_from("main") == "mizar.k8s.io/container-devices-from.main"
    value = devices_from_value(device_ids("team-a", "shadow-2-x7k4q", 2))
    assert json.loads(value) == {
        "_/shadow-2-x7k4q/main": {"*": ["shadow-2-x7k4q-0", "shadow-2-x7k4q-1"]}
    }
    assert devices_of_value(value) == {"shadow-2-x7k4q-0", "shadow-2-x7k4q-1"}
    assert names.container_devices_ids("main") == "mizar.k8s.io/container-devices-ids.main"
    assert cards_of_value('{"nvidia.com/gpu":["GPU-a","GPU-b"]}') == {"GPU-a", "GPU-b"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"a":3}', '{"a":"GPU"}', '{"a":{"*":"b"}}', '{"a":[{}]}'],
)
def test_other_values_of_the_annotations_are_refused(text: str) -> None:
    with pytest.raises(DeviceIDRefused, match="names no"):
        devices_of_value(text)
    with pytest.raises(DeviceIDRefused, match="names no"):
        cards_of_value(text)
