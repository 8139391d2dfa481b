"""The models: what they take from the API server and what they give it."""

from typing import Any

import pytest
from pydantic import ValidationError

from mizar_core import models


def _quota(**spec: Any) -> models.GPUQuota:
    body = {"pool": "default", "profiles": [{"devices": 2, "max": 1}]} | spec
    return models.GPUQuota.from_dict({"metadata": {"name": "q", "namespace": "a"}, "spec": body})


def test_a_pool_of_nothing_but_a_name_has_all_defaults() -> None:
    pool = models.GPUPool.from_dict({"metadata": {"name": "default"}})
    assert pool.spec.resource_prefix == "mizar.share"
    assert pool.spec.tenancy == "PerNamespace"
    assert [(one.devices, one.cards) for one in pool.spec.profiles] == [
        (2, 1),
        (4, 2),
        (8, 4),
        (16, 8),
    ]


def test_names_are_camel_case_outside() -> None:
    pool = models.GPUPool(spec=models.GPUPoolSpec(idle_timeout_seconds=5)).to_dict()
    assert pool["spec"]["idleTimeoutSeconds"] == 5
    card = models.CardStatus(uuid="GPU-a", memory_mib=16384).to_dict()
    assert card["memoryMiB"] == 16384


def test_unknown_fields_of_a_newer_version_are_dropped() -> None:
    assert "later" not in _quota(later=1).to_dict()["spec"]


def test_what_was_written_is_read_again() -> None:
    quota = _quota(maxCards=3, isolation={"compute": "Hard"}, idleTimeoutSeconds=1)
    assert models.GPUQuota.from_dict(quota.to_dict()) == quota


@pytest.mark.parametrize(
    "spec",
    [
        {"profiles": [{"devices": "2", "max": 1}]},
        {"profiles": [{"devices": 2, "max": 1.0}]},
        {"profiles": [{"devices": 2, "min": 2, "max": 1}]},
        {"profiles": []},
        {"pool": ""},
        {"maxCards": -1},
        {"isolation": {"compute": "Fair"}},
    ],
)
def test_a_wrong_quota_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _quota(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"profiles": [{"devices": 3, "cards": 2}]},
        {"profiles": [{"devices": 2, "cards": 1, "memory": "8GiB"}]},
        {"profiles": [{"devices": 2, "cards": 1, "memory": "0"}]},
        {"memoryScaling": "0"},
        {"resourcePrefix": "gpu.kubernetes.io"},
        {"resourcePrefix": "requests.example"},
        {"resourcePrefix": "nodots"},
        {"resourcePrefix": "gpu.intel.com"},
        *(
            {"profiles": [{"devices": 2, "cards": 1, "alias": alias}]}
            for alias in (
                "nvidia.com/gpu",
                "nvidia.com/gpu.shared",
                "nvidia.com/mig-1g.5gb",
                "mizar.spot/gpu",
                "team-b.mizar.share/gpu.2",
                "kubernetes.io/vgpu",
                "vgpu",
                "a/b/c",
            )
        ),
        {"resourcePrefix": "a.example", "physicalResource": "a.example/gpu"},
        {
            "physicalResource": "a.example/b",
            "profiles": [{"devices": 2, "cards": 1, "alias": "a.example/b"}],
        },
        {"profiles": [{"devices": n, "cards": 1, "alias": "a.example/b"} for n in (2, 4)]},
        *(
            {"profiles": [{"devices": 2, "cards": 1, "alias": "a.example/b"}], "sizes": sizes}
            for sizes in (
                [{"name": "nvidia.com/gpu", "devices": 2, "unitsPerDevice": 1}],
                [{"name": "a.example/b", "devices": 2, "unitsPerDevice": 1}],
                [{"name": "a.example/mib", "devices": 4, "unitsPerDevice": 1}],
                [{"name": "a.example/mib", "devices": 2, "unitsPerDevice": 0}],
                [{"name": "a.example/mib", "devices": 2, "unitsPerDevice": n} for n in (1, 2)],
            )
        ),
        {"profiles": [{"devices": 2, "cards": 1, "memory": "63Mi"}]},
        {"tolerations": [{"effect": "NoSchedule"}]},
        {"nodeSelector": {"a b": "c"}},
        {"runtimeClassName": "A"},
    ],
)
def test_a_wrong_pool_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        models.GPUPoolSpec.from_dict(spec)


def test_numbers_without_quotes_are_quantities_and_scalings() -> None:
    spec = models.GPUPoolSpec.from_dict(
        {"memoryScaling": 2, "profiles": [{"devices": 1, "cards": 1, "memory": 1 << 30}]}
    )
    assert spec.memory_scaling == "2"
    assert spec.profiles[0].memory_bytes == 1 << 30


def test_a_quota_overrides_its_pool_field_by_field() -> None:
    pool = models.GPUPoolSpec(isolation=models.Isolation(compute="Soft", backend="Shim"))
    quota = _quota(isolation={"compute": "Hard"}, idleTimeoutSeconds=0).spec
    assert models.isolation_of(pool, quota) == models.Isolation(compute="Hard", backend="Shim")
    assert models.idle_timeout_of(pool, quota) == 0
    assert models.isolation_of(pool, _quota().spec) == pool.isolation
    assert models.idle_timeout_of(pool, _quota().spec) == 300


def test_a_quota_may_be_for_borrowers_alone() -> None:
    quota = models.GPUQuota.from_dict({"spec": {"spot": {"max": 2}}})
    assert quota.spec.profiles == ()
    assert models.GPUQuota.from_dict(quota.to_dict()) == quota


def test_usage_is_for_people() -> None:
    held = models.Holder(namespace="a", name="pod", container="main")
    devices = (models.DeviceStatus(id="a/s-0", holder=held), models.DeviceStatus(id="a/s-1"))
    assert models.ShadowPodStatus(devices=devices).to_dict()["usage"] == "1/2"
    assert "usage" not in models.ShadowPodStatus(phase="Pending").to_dict()
    assert models.CardCounts(total=4, held=1).to_dict()["usage"] == "1/4"


def test_an_object_is_changed_by_a_copy() -> None:
    status = models.ShadowPodStatus(phase="Pending")
    assert status.changed(phase="Ready").phase == "Ready"
    with pytest.raises(ValidationError):
        status.phase = "Ready"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        status.changed(phase="Gone")
