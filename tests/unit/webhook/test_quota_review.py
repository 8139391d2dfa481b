"""Quotas that don't fit their pool, pools that would no longer fit their quotas, and numbers in
pools without the quotes that Kubernetes wants."""

from typing import Any

import pytest

from mizar_operator.webhook.quota_review import (
    Findings,
    review_pool,
    review_quota,
    unquoted_numbers,
)
from support import int_or_string
from unit.webhook.builders import pool, quota

UNKNOWN = [{"devices": 3, "max": 1}]


def test_a_quota_that_fits() -> None:
    assert review_quota(quota(), [pool()], []) == Findings()


def test_a_quota_of_a_profile_that_the_pool_has_not() -> None:
    (problem,) = review_quota(quota(profiles=UNKNOWN), [pool()], []).problems
    assert problem.startswith("spec.profiles[0].devices: pool 'default' has no profile of 3")


def test_a_quota_before_its_pool_is_only_warned_about() -> None:
    findings = review_quota(quota(pool="later"), [pool()], [])
    assert findings == Findings(
        warnings=("GPUPool 'later' doesn't exist yet: nothing happens until it does",)
    )


def test_two_quotas_for_the_same_devices() -> None:
    (problem,) = review_quota(quota(), [pool()], [quota(name="other"), quota()]).problems
    assert "the quota 'other' of this namespace" in problem
    assert review_quota(quota(), [pool()], [quota(namespace="team-b", name="other")]) == Findings()


def test_a_profile_that_quotas_use_stays() -> None:
    new = pool(profiles=[{"devices": 4, "cards": 2}])
    quotas = [quota("team-b"), quota("team-a"), quota("team-c", pool="other")]
    problems = review_pool(new, pool(), [pool()], quotas).problems
    assert [problem.split(" (")[0] for problem in problems] == [
        "GPUQuota team-a/gpus would not fit any more",
        "GPUQuota team-b/gpus would not fit any more",
    ]
    assert all(problem.endswith("change that quota first") for problem in problems)


def test_a_profile_that_nobody_uses_may_go() -> None:
    new = pool(profiles=[{"devices": 2, "cards": 1}])
    assert review_pool(new, pool(), [pool()], [quota()]) == Findings()


@pytest.mark.parametrize(
    ("default", "problem"),
    [
        ({"profiles": UNKNOWN}, "spec.defaultQuota.profiles[0].devices: pool 'default' has no"),
        (
            {"profiles": [{"devices": 4, "max": 1}], "maxCards": 1},
            "spec.defaultQuota.maxCards: 1 cards are too few for a shadow pod of 4 devices",
        ),
        (
            {"profiles": [{"devices": 2, "min": 2, "max": 2}], "maxCards": 1},
            "spec.defaultQuota.maxCards: the profiles' min keep 2 cards",
        ),
        (
            {"profiles": [{"devices": 2, "max": 1}], "isolation": {"compute": "Hard"}},
            "spec.defaultQuota.isolation: with what pool 'default' says, backend None enforces",
        ),
    ],
)
def test_a_default_quota_fits_its_pool(default: Any, problem: str) -> None:
    made = pool(defaultQuota=default, isolation={"backend": "None"})
    (said,) = review_pool(made, None, [], []).problems
    assert said.startswith(problem)
    fits = pool(defaultQuota={"profiles": [{"devices": 2, "max": 1}]})
    assert review_pool(fits, None, [], []) == Findings()


def test_what_was_wrong_before_does_not_hold_up_the_pool() -> None:
    quotas = [quota(profiles=UNKNOWN)]
    changed = pool(idleTimeoutSeconds=1)
    assert review_pool(changed, pool(), [pool()], quotas) == Findings()
    assert review_pool(pool(), None, [], quotas) == Findings()


@pytest.mark.parametrize(
    "profiles",
    [
        [{"devices": 2, "cards": 1}, {"devices": 6, "cards": 1}],
        [{"devices": 2, "cards": 1}, {"devices": 4, "cards": 2}, {"devices": 5, "cards": 1}],
    ],
    ids=["one of two that are missing", "another one"],
)
def test_a_profile_can_be_added_beside_a_quota_that_was_wrong_before(profiles: Any) -> None:
    """The quota may have been created before its pool, or the pool created again without the
    profiles; the sentence about it lists the pool's profiles, which is not a new problem."""
    both = [{"devices": 3, "max": 1}, {"devices": 5, "max": 1}, {"devices": 6, "max": 1}]
    before = pool(profiles=[{"devices": 2, "cards": 1}])
    after = pool(profiles=profiles)
    assert review_pool(after, before, [before], [quota(profiles=both)]) == Findings()


def test_a_quota_that_was_wrong_before_keeps_what_it_has_right() -> None:
    both = [{"devices": 2, "max": 1}, *UNKNOWN]
    (problem,) = review_pool(
        pool(profiles=[{"devices": 4, "cards": 2}]), pool(), [pool()], [quota(profiles=both)]
    ).problems
    assert "spec.profiles[0].devices" in problem


def test_compute_that_nobody_shares_out_needs_no_scaling() -> None:
    (warning,) = review_pool(pool(coreScaling="2"), None, [], []).warnings
    assert warning.startswith("coreScaling changes nothing while isolation.compute is None")
    for fine in (pool(coreScaling="1"), pool(coreScaling="2", isolation={"compute": "Soft"})):
        assert review_pool(fine, None, [], []) == Findings()


def test_pools_that_could_be_mixed_up() -> None:
    shared = pool("a", tenancy="Shared")
    findings = review_pool(pool("b", tenancy="Shared"), None, [shared], [])
    assert "give each pool a different resourcePrefix" in findings.problems[0]


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            {"memoryScaling": 1.5},
            [
                'spec.memoryScaling: write 1.5 in quotes, "1.5": Kubernetes accepts no such number'
                " here",
            ],
        ),
        (
            {"memoryScaling": False, "coreScaling": True},
            [
                'spec.memoryScaling: false is not a number: write one in quotes, such as "1.5"',
                'spec.coreScaling: true is not a number: write one in quotes, such as "1.5"',
            ],
        ),
        (
            {"profiles": [{"devices": 1}, {"memory": 1e9}, {"memory": False}]},
            [
                'spec.profiles[1].memory: write 1000000000.0 in quotes, "1000000000.0": Kubernetes'
                " accepts no such number here",
                "spec.profiles[2].memory: false is not a number: write one in quotes, such as "
                '"8Gi"',
            ],
        ),
        ({"memoryScaling": "1.5", "coreScaling": 2, "profiles": [{"memory": "8Gi"}]}, []),
        (
            {"spot": {"reserve": True}},
            ['spec.spot.reserve: true is not a number: write one in quotes, such as "1Gi"'],
        ),
        (
            {"nodeSelector": {"pool": True, "zone": "a", "rack": 7}},
            [
                'spec.nodeSelector.pool: write true in quotes, "true": Kubernetes accepts only text'
                " here",
                'spec.nodeSelector.rack: write 7 in quotes, "7": Kubernetes accepts only text here',
            ],
        ),
        (
            {"cardModels": ["NVIDIA-*", 4090]},
            ['spec.cardModels[1]: write 4090 in quotes, "4090": Kubernetes accepts only text here'],
        ),
        (
            {"tolerations": [{"key": "a", "value": "true"}, {"key": "b", "value": 1.5}, 3]},
            [
                'spec.tolerations[1].value: write 1.5 in quotes, "1.5": Kubernetes accepts only'
                " text here"
            ],
        ),
        (
            {"defaultQuota": {"namespaceSelector": {"matchLabels": {"gpu": False}}}},
            [
                "spec.defaultQuota.namespaceSelector.matchLabels.gpu: write false in quotes, "
                '"false": Kubernetes accepts only text here'
            ],
        ),
        ({"nodeSelector": {"x": None}, "cardModels": [None, {}], "tolerations": [{}]}, []),
        ({"nodeSelector": 3, "cardModels": 3, "tolerations": 3, "defaultQuota": 3}, []),
        ({"defaultQuota": {"namespaceSelector": {"matchLabels": [True]}}}, []),
        ({"memoryScaling": None, "profiles": None, "spot": None}, []),
        ({"spot": {"reserve": 2**30}}, []),
        ({"spot": 1.5}, []),
        ({"profiles": 3}, []),
        ({"profiles": [3]}, []),
        (3, []),
        (None, []),
    ],
)
def test_each_gets_a_sentence(spec: Any, sentences: list[str]) -> None:
    assert list(unquoted_numbers({"spec": spec})) == sentences


@pytest.mark.parametrize(
    "field", [field for kind in int_or_string.USERS for field in int_or_string.fields(kind)]
)
def test_no_field_that_wants_quotes_is_forgotten(field: str) -> None:
    (sentence,) = unquoted_numbers({"spec": int_or_string.with_value(field, 1.5)})
    assert sentence.startswith(f'{field}: write 1.5 in quotes, "1.5"')


class TestAliases:
    NAMED = pool(profiles=[{"devices": 2, "cards": 1, "alias": "nvidia.com/vgpu"}])

    def test_the_installation_permits_names(self) -> None:
        assert not review_pool(self.NAMED, None, [], [], ["nvidia.com/vgpu"]).problems
        (problem,) = review_pool(self.NAMED, None, [], []).problems
        assert problem.startswith("spec.profiles[0].alias: Mizar was installed without the name")
        assert "webhook.resourceNames" in problem

    def test_two_pools_have_not_the_same(self) -> None:
        other = pool("other", profiles=[{"devices": 4, "cards": 1, "alias": "nvidia.com/vgpu"}])
        (problem,) = review_pool(other, None, [self.NAMED], [], ["nvidia.com/vgpu"]).problems
        assert "pool 'default' already uses the name 'nvidia.com/vgpu'" in problem
        assert not review_pool(self.NAMED, None, [self.NAMED], [], ["nvidia.com/vgpu"]).problems

    def test_sizes_are_names_too(self) -> None:
        """Only where the installation permits them. Several pools may have the same size, unless
        it is an alias of one."""
        size = {"name": "nvidia.com/gpumem", "devices": 2, "unitsPerDevice": 4096}
        sized = pool("sized", profiles=[{"devices": 2, "cards": 1}], sizes=[size])
        assert not review_pool(sized, None, [], [], ["nvidia.com/gpumem"]).problems
        (problem,) = review_pool(sized, None, [], []).problems
        assert problem.startswith("spec.sizes[0].name: Mizar was installed without the name")
        assert not review_pool(sized, sized, [], []).problems, "it had the name before"
        alias = {"devices": 2, "cards": 1, "alias": "nvidia.com/gpumem"}
        other = pool(sizes=[size])
        assert not review_pool(sized, None, [other], [], ["nvidia.com/gpumem"]).problems
        named = pool(profiles=[alias])
        for one, taken in ((sized, named), (named, sized)):
            (problem,) = review_pool(one, None, [taken], [], ["nvidia.com/gpumem"]).problems
            name = taken.metadata.name
            assert f"pool '{name}' already uses the name 'nvidia.com/gpumem'" in problem

    def test_a_name_that_is_permitted_no_more_holds_up_no_other_change(self) -> None:
        profiles = self.NAMED.to_dict()["spec"]["profiles"]
        changed = pool(profiles=profiles, idleTimeoutSeconds=1)
        assert not review_pool(changed, self.NAMED, [self.NAMED], []).problems

    def test_a_name_that_is_permitted_no_more_holds_up_no_other_name(self) -> None:
        """Neither the removal of a second such name nor a new name that is permitted."""
        lost = {"devices": 2, "cards": 1, "alias": "nvidia.com/vgpu"}
        plain, lost_too, fine = (
            {"devices": 4, "cards": 2, **more}
            for more in ({}, {"alias": "nvidia.com/vgpu-4"}, {"alias": "nvidia.com/quarter"})
        )
        permitted = ["nvidia.com/quarter"]
        for before, after in ((lost_too, plain), (plain, fine)):
            old, new = (pool(profiles=[lost, one]) for one in (before, after))
            assert not review_pool(new, old, [old], [], permitted).problems
        old, new = (pool(profiles=[lost, one]) for one in (plain, lost_too))
        (problem,) = review_pool(new, old, [old], [], permitted).problems
        assert problem.startswith("spec.profiles[1].alias: Mizar was installed without the name")
