"""Pods that request a size, such as MiB of GPU memory, get as many devices as that needs."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizar_core.models import GPUPool
from mizar_operator.webhook.pod_review import Decision, review
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import VisiblePools
from support.effort import effort
from unit.webhook.builders import Object, container, decide, limits, patched, pool, spec

GPU, MIB, PERCENT, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpu-part", "a.b/cores"
NAMES = (MIB, PERCENT, CORES)
PLAIN, TWENTY = "mizar.share/gpu.20", "team-a.mizar.share/gpu.20"
SAME_CARD = "mizar.share/same-card"
ENTRIES: dict[str, Any] = {
    "profiles": [{"devices": 20, "cards": 1}, {"devices": 8, "cards": 2}],
    "sizes": [
        {"name": MIB, "devices": 20, "unitsPerDevice": 4096},
        {"name": PERCENT, "devices": 20, "unitsPerDevice": 5},
        {"name": CORES, "devices": 8, "unitsPerDevice": 25},
    ],
}
SIZED = pool(**ENTRIES)


def judge(
    pod: Object,
    *pools: GPUPool,
    names: tuple[str, ...] = NAMES,
    own: tuple[str, ...] = ("default",),
    **more: Any,
) -> Decision:
    return decide(pod, *(pools or (SIZED,)), names=names, own=own, **more)


def made(pod: Object, **more: Any) -> Object:
    """The pod after its review."""
    decision = judge(pod, **more)
    assert not decision.refusals, decision.refusals
    return patched(pod, decision)


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ({MIB: "1"}, 1),
        ({MIB: "4096"}, 1),
        ({MIB: "4097"}, 2),
        ({MIB: "12k"}, 3),
        ({PERCENT: "100"}, 20),
        ({MIB: "4096", PERCENT: "30"}, 6),
        ({MIB: "81920", PERCENT: "30"}, 20),
        ({GPU: "1", MIB: "3000"}, 1),
        ({GPU: "0", MIB: "3000"}, 1),
    ],
)
def test_a_container_gets_as_many_devices_as_its_largest_size_needs(
    asked: Object, devices: int
) -> None:
    after = made(spec(container({**asked, "cpu": "1"})))
    assert limits(after) == {TWENTY: str(devices), "cpu": "1"}
    assert after["containers"][0]["resources"]["requests"] == limits(after)


def test_in_a_shared_pool_the_name_has_no_tenant() -> None:
    shared = pool(tenancy="Shared", **ENTRIES)
    pod = spec(container({MIB: "5000"}))
    assert limits(patched(pod, judge(pod, shared))) == {PLAIN: "2"}


def small(name: str = "small", **more: Any) -> GPUPool:
    """A pool of other cards, with one size of the same name."""
    sizes = [{"name": MIB, "devices": 10, "unitsPerDevice": 1000}]
    profiles = [{"devices": 10, "cards": 1}]
    return pool(name, profiles=profiles, sizes=sizes, **{"resourcePrefix": f"{name}.t", **more})


class TestPool:
    """Several pools may have a size of the same name."""

    POD = spec(container({MIB: "4000"}))

    def test_that_of_the_namespaces_quota_decides(self) -> None:
        for own, devices in (("default", {TWENTY: "1"}), ("small", {"team-a.small.t/gpu.10": "4"})):
            decision = judge(self.POD, SIZED, small(), own=(own,))
            assert limits(patched(self.POD, decision)) == devices and not decision.doubtful

    @pytest.mark.parametrize(
        ("more", "name"),
        [
            ({"tenancy": "Shared"}, "small.t/gpu.10"),
            ({"defaultQuota": {"profiles": [{"devices": 10, "max": 1}]}}, "team-a.small.t/gpu.10"),
        ],
    )
    def test_then_a_shared_one_and_one_that_gives_quotas(self, more: Any, name: str) -> None:
        decision = judge(self.POD, SIZED, small(**more), own=())
        assert limits(patched(self.POD, decision)) == {name: "4"}
        assert decision.doubtful == ("defaultQuota" in more), "the quota may be new"

    def test_the_only_one_is_taken_at_a_guess(self) -> None:
        decision = judge(self.POD, own=())
        assert limits(patched(self.POD, decision)) == {TWENTY: "1"} and decision.doubtful

    @pytest.mark.parametrize(
        ("own", "sentence"),
        [
            ((), "pools 'default', 'small' have it: a GPUQuota of the namespace must name one"),
            (("else",), "pool 'default' has it, but no GPUQuota of the namespace names that pool"),
        ],
    )
    def test_two_that_are_as_near_are_refused(self, own: tuple[str, ...], sentence: str) -> None:
        """A template is only warned of: its pods are made after the quota, as helm makes both."""
        decision = judge(self.POD, SIZED, small(), own=own)
        assert sentence in decision.refusals[0] and decision.doubtful
        assert decision.refusals[0].startswith(f"container 'main', {MIB}: ")
        decision = judge(self.POD, SIZED, small(), own=own, template=True)
        assert sentence in decision.warnings[0] and not decision.refusals and not decision.patch

    def test_one_pool_has_all_sizes_of_a_container(self) -> None:
        """The nearest would have only one of them."""
        pod = spec(container({MIB: "4000", PERCENT: "5"}))
        decision = judge(pod, small("a", tenancy="Shared"), SIZED, own=())
        assert limits(patched(pod, decision)) == {TWENTY: "1"}
        other = pool(profiles=ENTRIES["profiles"], sizes=ENTRIES["sizes"][1:2])
        (sentence,) = judge(pod, small(), other).refusals
        assert f"{MIB}: no GPUPool has all of {PERCENT}, {MIB}" in sentence


def test_each_container_is_its_own() -> None:
    pod = spec(
        container({MIB: "4096"}, name="one"),
        container({PLAIN: "2"}, name="two"),
        container({GPU: "2"}, name="three"),
        init=[container({CORES: "50"}, name="first")],
    )
    after = made(pod)
    assert limits(after) == {TWENTY: "1"}
    assert limits(after, 1) == {TWENTY: "2"} and limits(after, 2) == {GPU: "2"}
    first = after["initContainers"][0]["resources"]["limits"]
    assert first == {"team-a.mizar.share/gpu.8": "2"}


@pytest.mark.parametrize("annotations", [None, {}, {"a": "b"}])
def test_several_devices_must_be_of_one_card(annotations: dict[str, str] | None) -> None:
    """Beside what else is annotated."""
    pod = spec(container({MIB: "5000"}))
    given = {} if annotations is None else {"annotations": annotations}
    decision = judge(pod, annotations=annotations, delay="8760h")
    after = jsonpatch.apply_patch({"metadata": given, "spec": pod}, decision.patch)
    found = after["metadata"]["annotations"]
    assert found[SAME_CARD] == "true" and len(found) == len(annotations or {}) + 2
    assert found.items() >= (annotations or {}).items()


@pytest.mark.parametrize(("asked", "annotations"), [("4096", None), ("5000", {SAME_CARD: "false"})])
def test_one_device_is_of_one_card_and_the_users_word_counts(
    asked: str, annotations: dict[str, str] | None
) -> None:
    decision = judge(spec(container({MIB: asked})), annotations=annotations)
    assert SAME_CARD not in str(decision.patch) and "same-card" not in str(decision.patch)


def test_a_template_keeps_its_sizes() -> None:
    """Tools that compare a manifest with its object find no difference."""
    pod = spec(container({GPU: "1", MIB: "3000"}))
    assert judge(pod, template=True) == Decision()
    assert judge(pod, template=True, old=pod) == Decision()


def test_limits_and_requests_must_need_as_many_devices() -> None:
    pod = spec(container({MIB: "3000"}, {MIB: "4000"}))
    assert not judge(pod, template=True).refusals, "both need one device"
    pod = spec(container({MIB: "3000"}, {MIB: "5000"}))
    assert "requests 2 and limits 1 differ" in judge(pod, template=True).refusals[0]
    old = spec(container({MIB: "5000"}))
    assert judge(pod, template=True, old=old).refusals, "one of them has changed"


def test_a_whole_card_beside_them_may_be_in_the_requests_of_a_template_too() -> None:
    """As HAMi's manifests have it; the API server fills in the requests of pods alone."""
    pod = spec(container({GPU: "1", MIB: "3000"}, {GPU: "1"}))
    assert judge(pod, template=True) == Decision()
    after = patched(pod, judge(pod))["containers"][0]["resources"]
    assert after == {"limits": {TWENTY: "1"}, "requests": {}}
    pod = spec(container({GPU: "1", MIB: "3000"}, {MIB: "3000"}))
    assert limits(patched(pod, judge(pod))) == {TWENTY: "1"}


def test_beside_sizes_of_mig_devices_a_whole_card_means_nothing_either() -> None:
    mig = pool(physicalResource="nvidia.com/mig-1g.5gb", **ENTRIES)
    pod = spec(container({GPU: "1", MIB: "600"}))
    assert limits(patched(pod, judge(pod, mig))) == {TWENTY: "1"}


def test_a_pod_that_nothing_replaces_is_warned_of_several_cards() -> None:
    (told,) = judge(spec(container({MIB: "5000"}))).warnings
    assert 'with the annotation mizar.share/same-card: "false" it starts on several cards' in told
    assert not judge(spec(container({MIB: "4000"}))).warnings
    pod = PodSpec(spec(container({MIB: "5000"})), "team-a", controlled=True)
    assert not review(pod, VisiblePools([SIZED], "team-a", ["default"], NAMES)).warnings


def test_a_pod_that_is_applied_again_keeps_its_devices_whatever_the_units_are_now() -> None:
    """Its resources cannot be changed."""
    pod = spec(container({GPU: "1", MIB: "12000"}))
    there = made(pod)
    again = spec(container({**limits(there), **limits(pod)}))
    now = [{"name": MIB, "devices": 20, "unitsPerDevice": 1000}]
    for tenancy in ("PerNamespace", "Shared"):
        changed = pool(profiles=ENTRIES["profiles"], sizes=now, tenancy=tenancy)
        if tenancy == "Shared":
            there = spec(container({PLAIN: "3"}))
            again = spec(container({**limits(there), **limits(pod)}))
        assert limits(patched(again, judge(again, changed, old=there))) == limits(there)


def test_the_same_manifest_again_changes_nothing() -> None:
    """`kubectl apply` sends it beside what the first review made of it."""
    pod = spec(container({GPU: "1", MIB: "12000", "cpu": "1"}))
    there = made(pod)
    again = spec(container({**limits(there), **limits(pod)}))
    assert limits(made(again, old=there)) == limits(there)
    shared = pool(tenancy="Shared", **ENTRIES)
    there = patched(pod, judge(pod, shared))
    again = spec(container({**limits(there), **limits(pod)}))
    assert limits(patched(again, judge(again, shared, old=there))) == limits(there)


def test_sizes_of_zero_are_none() -> None:
    """Charts write them for no GPU; beside a whole card they leave that alone."""
    assert limits(made(spec(container({MIB: "0", "cpu": "1"})))) == {"cpu": "1"}
    assert limits(made(spec(container({MIB: "0", GPU: "2"})))) == {GPU: "2"}
    other = pool("other", profiles=ENTRIES["profiles"], sizes=ENTRIES["sizes"][2:])
    for own in ("small", "other"):
        pod = spec(container({MIB: "0", CORES: "0", "cpu": "1"}))
        assert limits(patched(pod, judge(pod, small(), other, own=(own,)))) == {"cpu": "1"}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({MIB: "1500m"}, "1500m is no whole number from 0 on"),
        ({MIB: "-1"}, "-1 is no whole number from 0 on"),
        ({GPU: "2", MIB: "3000"}, f"{GPU}: 2 beside {MIB}, which asks for a part of one card"),
        ({MIB: "3000", PLAIN: "2"}, f"asks for {MIB} and {PLAIN}: keep one of them"),
        ({MIB: "3000", TWENTY: "1"}, f"asks for {MIB} and {TWENTY}: keep one of them"),
        ({MIB: "3000", "mizar.share.gpu.20": "1"}, "and mizar.share.gpu.20: keep one of them"),
        ({MIB: "3000", "mizar.share/gpu.8": "1"}, "it can have devices of one of them only"),
    ],
)
@pytest.mark.parametrize("template", [True, False])
def test_what_no_pool_could_ever_meet_is_refused(
    asked: Object, sentence: str, template: bool
) -> None:
    pod = spec(container(asked))
    decision = judge(pod, template=template)
    assert sentence in decision.refusals[0] and not decision.patch
    left = judge(pod, template=template, old=pod)
    assert not (left.refusals or left.patch), "an update leaves it alone"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({MIB: "81921"}, "ask for at most 81920, which is a whole card in pool 'default', instead"),
        ({CORES: "101"}, "ask for at most 100, which is a whole card in pool 'default'"),
        ({MIB: "1e30"}, "instead of 1e30"),
        ({MIB: "many"}, "instead of many"),
        ({MIB: "1", CORES: "1"}, f"{CORES}: it is a size of mizar.share/gpu.8, but {MIB} one of"),
    ],
)
def test_what_the_pool_cannot_meet_now_is_refused_in_pods(asked: Object, sentence: str) -> None:
    """A template is only warned of: the pool may be another one when its pods are made, and a
    rollout of an older one must go on."""
    pod = spec(container(asked))
    decision = judge(pod)
    assert sentence in decision.refusals[0] and not decision.patch and decision.doubtful
    decision = judge(pod, template=True)
    assert sentence in decision.warnings[0] and not decision.refusals and not decision.patch
    for template in (True, False):
        assert judge(pod, template=template, old=pod) == Decision(), "an update leaves it alone"


def test_a_size_of_0_beside_others_is_none() -> None:
    assert limits(made(spec(container({MIB: "3000", CORES: "0"})))) == {TWENTY: "1"}
    other = pool("other", profiles=ENTRIES["profiles"], sizes=ENTRIES["sizes"][2:])
    pod = spec(container({MIB: "3000", CORES: "0"}))
    after = patched(pod, judge(pod, small(), other, own=("small",)))
    assert limits(after) == {"team-a.small.t/gpu.10": "3"}, "the other pool alone has that size"


def test_each_container_is_judged_whatever_the_others_are() -> None:
    left = container({MIB: "3000"}, name="left")
    wrong = container({GPU: "2", MIB: "3000"}, name="wrong")
    old = spec(left, container({}, name="wrong"))
    (sentence,) = judge(spec(left, wrong), template=True, old=old).refusals
    assert sentence.startswith("container 'wrong'")
    nobodys = container({MIB: "1", CORES: "1"}, name="nobodys")
    other = pool("other", profiles=ENTRIES["profiles"], sizes=ENTRIES["sizes"][2:])
    first, second = judge(spec(nobodys, wrong), small(), other, own=("small",)).refusals
    assert first.startswith("container 'wrong'") and second.startswith("container 'nobodys'")


def test_what_else_a_container_requests_is_its_own_affair() -> None:
    pod = spec(container({MIB: "3000", "amd.com/gpu.2": "1"}))
    assert limits(made(pod)) == {TWENTY: "1", "amd.com/gpu.2": "1"}
    pod = spec(container({MIB: "3000", "team-b.mizar.share/gpu.20": "1"}))
    assert any("it belongs to namespace 'team-b'" in one for one in judge(pod).refusals)


def test_without_the_installations_leave_it_is_somebody_elses() -> None:
    assert judge(spec(container({MIB: "3000"})), names=()) == Decision()


def test_a_size_that_no_pool_has() -> None:
    (sentence,) = judge(spec(container({MIB: "3000"})), pool()).refusals
    assert "no profile of a GPUPool has this alias, and no GPUPool this size" in sentence


def test_the_log_says_what_became_of_a_size() -> None:
    assert judge(spec(container({MIB: "3000", GPU: "1"}))).rewritten == {MIB: TWENTY}


@effort()
@given(mib=st.integers(1, 81920), percent=st.integers(0, 100))
def test_the_devices_are_enough_and_no_more_than_needed(mib: int, percent: int) -> None:
    devices = int(limits(made(spec(container({MIB: str(mib), PERCENT: str(percent)}))))[TWENTY])
    assert devices * 4096 >= mib and devices * 5 >= percent
    assert (devices - 1) * 4096 < mib or (devices - 1) * 5 < percent
