"""Pods that request a size, such as MiB of GPU memory, get as many devices as that needs."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizar_core.models import GPUPool
from mizar_operator.webhook.pod_review import Decision
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


def judge(pod: Object, *pools: GPUPool, names: tuple[str, ...] = NAMES, **more: Any) -> Decision:
    return decide(pod, *(pools or (SIZED,)), names=names, **more)


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


def test_the_pool_of_the_namespaces_quota_decides() -> None:
    """Its cards are others, so a device has another number of MiB."""
    sizes = [{"name": MIB, "devices": 10, "unitsPerDevice": 1000}]
    small = pool("small", profiles=[{"devices": 10, "cards": 1}], sizes=sizes, resourcePrefix="s.t")
    pod = spec(container({MIB: "4000"}))
    assert limits(patched(pod, judge(pod, SIZED, small))) == {TWENTY: "1"}
    assert limits(patched(pod, judge(pod, SIZED, small, own=("default",)))) == {TWENTY: "1"}
    after = patched(pod, judge(pod, SIZED, small, own=("small",)))
    assert limits(after) == {"team-a.s.t/gpu.10": "4"}


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


def test_a_template_whose_tenant_cannot_have_them_is_refused() -> None:
    pod = spec(container({MIB: "3000"}, {MIB: "4000"}))
    assert "differ" not in str(judge(pod, template=True).refusals), "both need one device"
    pod = spec(container({MIB: "3000"}, {MIB: "5000"}))
    assert "requests 2 and limits 1 differ" in judge(pod, template=True).refusals[0]


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


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({MIB: "81921"}, "ask for at most 81920, which is a whole card, instead of 81921"),
        ({CORES: "101"}, "ask for at most 100, which is a whole card, instead of 101"),
        ({MIB: "1e30"}, "ask for at most 81920, which is a whole card, instead of 1e30"),
        ({MIB: "many"}, "ask for at most 81920, which is a whole card, instead of many"),
        ({MIB: "1500m"}, "1500m is a fraction: ask for a whole number"),
        ({MIB: "1", CORES: "1"}, f"{CORES}: it is a size of mizar.share/gpu.8, but {MIB} one of"),
        ({GPU: "2", MIB: "3000"}, f"{GPU}: 2 beside {MIB}, which asks for a part of one card"),
        ({MIB: "3000", PLAIN: "2"}, f"asks for {MIB} and {PLAIN}: keep one of them"),
        ({MIB: "3000", "mizar.share/gpu.8": "1"}, "it can have devices of one of them only"),
    ],
)
@pytest.mark.parametrize("template", [True, False])
def test_what_no_devices_can_meet_is_refused(asked: Object, sentence: str, template: bool) -> None:
    pod = spec(container(asked))
    decision = judge(pod, template=template)
    assert sentence in decision.refusals[0] and not decision.patch and decision.doubtful
    assert judge(pod, template=template, old=pod) == Decision(), "an update that leaves it alone"


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
