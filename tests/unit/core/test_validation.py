"""What a quota and its pool can get wrong together."""

from typing import Any

import pytest

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.validation import check_pool_among, check_quota_against_pool, check_quota_among


def _pool(name: str = "default", **spec: Any) -> GPUPool:
    return GPUPool.from_dict({"metadata": {"name": name}, "spec": spec})


def _quota(name: str = "quota", namespace: str = "team-a", **spec: Any) -> GPUQuota:
    body = {"pool": "default", "profiles": [{"devices": 2, "max": 1}]} | spec
    return GPUQuota.from_dict({"metadata": {"name": name, "namespace": namespace}, "spec": body})


def test_a_quota_that_fits_its_pool_has_no_problem() -> None:
    assert check_quota_against_pool(_quota(), _pool()) == []


@pytest.mark.parametrize(
    ("quota", "pool", "field", "sentence"),
    [
        (
            _quota(profiles=[{"devices": 2, "max": 1}, {"devices": 3, "max": 1}]),
            _pool(),
            "spec.profiles[1].devices",
            "pool 'default' has no profile of 3 devices: choose among 2, 4, 8, 16",
        ),
        (
            _quota(profiles=[{"devices": 4, "min": 2, "max": 2}], maxCards=3),
            _pool(),
            "spec.maxCards",
            "the profiles' min keep 4 cards, more than maxCards 3",
        ),
        (
            _quota(profiles=[{"devices": 8, "max": 1}], maxCards=3),
            _pool(),
            "spec.maxCards",
            "3 cards are too few for a shadow pod of 8 devices, which holds 4",
        ),
        (
            _quota(isolation={"compute": "Hard"}),
            _pool(isolation={"backend": "None"}),
            "spec.isolation",
            "with what pool 'default' says, backend None enforces no limits",
        ),
        (
            _quota(isolation={"backend": "MPS"}),
            _pool(),
            "spec.isolation",
            "backend MPS is not built yet: set it to Auto or Shim",
        ),
        (
            _quota(isolation={"memory": "Hard"}),
            _pool(memoryScaling="1.5", isolation={"memory": "Oversubscribe"}),
            "spec.isolation",
            "memoryScaling above 1 allocates more memory than the card has",
        ),
        (
            _quota(namespace="requests"),
            _pool(),
            "metadata.namespace",
            "the namespace 'requests' cannot have shared GPUs",
        ),
    ],
)
def test_a_quota_that_does_not_fit(
    quota: GPUQuota, pool: GPUPool, field: str, sentence: str
) -> None:
    (problem,) = check_quota_against_pool(quota, pool)
    assert problem.field == field
    assert sentence in problem.message
    assert str(problem).startswith(f"{field}: ")


def test_memory_up_to_the_cards_own_may_be_kept_hard() -> None:
    for scaling in ("1", "0.5"):
        assert check_quota_against_pool(_quota(), _pool(memoryScaling=scaling)) == []


def test_any_namespace_may_use_a_shared_pool() -> None:
    assert check_quota_against_pool(_quota(namespace="requests"), _pool(tenancy="Shared")) == []


def test_two_quotas_of_a_namespace_do_not_hand_out_the_same_resource() -> None:
    pools = {name: _pool(name) for name in ("default", "twin")}
    pools["apart"] = _pool("apart", resourcePrefix="h100.example.com")
    others = [
        _quota("same"),
        _quota("twin", pool="twin"),
        _quota("apart", pool="apart"),
        _quota("foreign", "team-b"),
        _quota("larger", profiles=[{"devices": 4, "max": 1}]),
        _quota(),
    ]
    problems = check_quota_among(_quota(), others, pools)
    assert [one.field for one in problems] == ["spec.profiles[0].devices"] * 2
    assert "the quota 'same' of this namespace already offers gpu.2" in problems[0].message
    assert "of pool 'twin':" in problems[1].message


@pytest.mark.parametrize(
    ("one", "other", "mixed"),
    [
        (_pool("a"), _pool("b"), False),
        (_pool("a", tenancy="Shared"), _pool("b", tenancy="Shared"), True),
        (_pool("a", tenancy="Shared"), _pool("b"), True),
        (_pool("a", tenancy="Shared"), _pool("b", resourcePrefix="b.example.com"), False),
        (_pool("a", tenancy="Shared", resourcePrefix="team-a.mizar.share"), _pool("b"), True),
        (_pool("a", tenancy="Shared"), _pool("a", tenancy="Shared"), False),
    ],
)
def test_pools_whose_resources_would_be_mixed_up(one: GPUPool, other: GPUPool, mixed: bool) -> None:
    for problems in (check_pool_among(one, [other]), check_pool_among(other, [one])):
        assert [problem.field for problem in problems] == ["spec.resourcePrefix"] * mixed
