"""Names survive a round trip: what is printed can be parsed, and what is parsed prints the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizar_core import names
from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from property.core import strategies as draw


@given(draw.devices)
def test_device_ids(device: DeviceID) -> None:
    assert DeviceID.parse(str(device)) == device


@given(st.text(max_size=40))
def test_any_text_is_a_device_or_refused(text: str) -> None:
    try:
        assert str(DeviceID.parse(text)) == text
    except DeviceIDRefused as error:
        assert text in str(error)


@given(draw.prefixes, draw.profiles)
def test_resources_of_a_pool(prefix: str, profile: int) -> None:
    slashed = names.parse_resource(names.resource_name(prefix, profile))
    dotted = names.parse_resource(f"{prefix}.gpu.{profile}")
    assert slashed == names.ParsedResource(prefix, profile, "slashed")
    assert dotted == names.ParsedResource(prefix, profile, "dotted")


@given(draw.labels, draw.prefixes, draw.profiles)
def test_resources_of_a_tenant(namespace: str, prefix: str, profile: int) -> None:
    parsed = names.parse_resource(names.tenant_resource_name(namespace, prefix, profile))
    assert parsed is not None and parsed.profile == profile
    assert names.tenant_of(parsed.prefix, prefix) == namespace
    assert names.tenant_of(prefix, prefix) is None


@given(st.text(max_size=40))
def test_any_text_is_a_resource_or_none(text: str) -> None:
    parsed = names.parse_resource(text)
    if parsed is not None:
        separator = "/" if parsed.form == "slashed" else "."
        assert text == f"{parsed.prefix}{separator}gpu.{parsed.profile}"


@pytest.mark.parametrize("quota_uid", ["", "8d6ad9b1-8f5e-4f39-a3c5-2f3f9b2a1c11"])
def test_shadow_names_differ_by_all_that_they_are_made_of(quota_uid: str) -> None:
    made = {names.shadow_name(quota_uid, n, at) for n in (1, 11, 111) for at in (1, 11, 111)}
    assert len(made) == 9
