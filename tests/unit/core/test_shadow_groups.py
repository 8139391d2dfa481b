"""Groups of shadow pods are as they were put together last."""

from __future__ import annotations

from mizar_core.planning.shadow_groups import ShadowGroups
from mizar_core.planning.snapshot import ShadowView


def shadow(name: str, devices: int = 2) -> ShadowView:
    return ShadowView("a", name, name, "pool", "quota", "", "r", devices, 1)


def names(groups: ShadowGroups[str], group: str = "r") -> list[str]:
    return [one.name for one in groups.of(group)]


def test_a_group_is_sorted_by_name_and_follows_its_changes() -> None:
    groups, found = ShadowGroups[str](), {name: shadow(name) for name in "bca"}
    for one in found.values():
        groups.put("r", one.key, one)
    assert names(groups) == ["a", "b", "c"]
    groups.drop("r", ("a", "b"))
    assert names(groups) == ["a", "c"]
    changed = shadow("c", devices=4)
    groups.put("r", changed.key, changed)
    assert groups.of("r") == (found["a"], changed)
    groups.put("r", ("a", "b"), found["b"])
    assert names(groups) == ["a", "b", "c"]


def test_a_group_that_was_asked_for_or_emptied_is_none() -> None:
    groups, one = ShadowGroups[str](), shadow("a")
    assert names(groups, "other") == []
    groups.put("r", one.key, one)
    assert list(groups) == ["r"]
    groups.drop("r", one.key)
    groups.drop("r", one.key)
    assert (list(groups), names(groups)) == ([], [])


def test_what_is_the_same_for_all_of_a_shadow_pods_life_is_told_with_it() -> None:
    one = shadow("x")
    assert (one.key, one.quota_key) == (("a", "x"), ("a", "quota"))
    assert one.key is one.key
