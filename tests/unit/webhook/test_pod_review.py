"""How admission changes a share pod, and for what it refuses one."""

from time import process_time
from typing import Any

import pytest

from mizar_core.models import GPUPool
from mizar_operator.node_policy import PREFERRED
from mizar_operator.webhook.pod_review import Decision, review
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import VisiblePools
from unit.webhook.builders import (
    Object,
    asking,
    container,
    decide,
    limits,
    patched,
    patched_object,
    pool,
    spec,
)

SHARED = pool(tenancy="Shared")
MINE = "team-a.mizar.share/gpu.2"


@pytest.mark.parametrize("written", ["mizar.share.gpu.2", "mizar.share/gpu.2", MINE])
def test_a_pod_gets_its_tenants_resource(written: str) -> None:
    before = asking(written)
    assert limits(patched(before, decide(before))) == {MINE: "1", "cpu": "1"}


@pytest.mark.parametrize("written", ["mizar.share.gpu.2", "mizar.share/gpu.2"])
def test_in_a_shared_pool_only_the_spelling_changes(written: str) -> None:
    before = asking(written)
    assert limits(patched(before, decide(before, SHARED))) == {"mizar.share/gpu.2": "1", "cpu": "1"}


@pytest.mark.parametrize("written", ["mizar.share.gpu.2", "mizar.share/gpu.2"])
def test_in_a_template_only_the_spelling_changes(written: str) -> None:
    before = asking(written)
    after = patched(before, decide(before, template=True))
    assert limits(after) == {"mizar.share/gpu.2": "1", "cpu": "1"}


def test_the_tenants_own_name_may_be_dotted_too() -> None:
    before = asking("team-a.mizar.share.gpu.2")
    assert limits(patched(before, decide(before))) == {MINE: "1", "cpu": "1"}


def test_all_containers_are_translated() -> None:
    before = spec(
        container({"mizar.share.gpu.2": "1"}, name="one"),
        container({"cpu": "1"}, name="two"),
        container({"mizar.share/gpu.4": "2"}, name="three"),
        init=[container({"mizar.share.gpu.2": "1"}, name="init")],
    )
    after = patched(before, decide(before))
    assert limits(after, 0) == {MINE: "1"}
    assert after["containers"][1] == before["containers"][1]
    assert limits(after, 2) == {"team-a.mizar.share/gpu.4": "2"}
    assert after["initContainers"][0]["resources"]["limits"] == {MINE: "1"}


def test_another_prefix() -> None:
    before = asking("gpus.example.com.gpu.2")
    decision = decide(before, pool(resourcePrefix="gpus.example.com"))
    assert limits(patched(before, decision)) == {"team-a.gpus.example.com/gpu.2": "1", "cpu": "1"}


@pytest.mark.parametrize("template", [False, True])
def test_a_node_is_chosen_by_the_scheduler(template: bool) -> None:
    """A kubelet that knows nothing of the resource starts such a pod without a card."""
    chosen = {**asking("mizar.share/gpu.2"), "nodeName": "n1"}
    (said,) = decide(chosen, template=template).refusals
    assert "nodeName n1" in said and "kubernetes.io/hostname: n1" in said
    assert decide({**asking("cpu"), "nodeName": "n1"}) == Decision()
    bound = {**asking(MINE), "nodeName": "n1"}
    assert decide(bound, old=bound) == Decision()
    mirror = PodSpec(chosen, "team-a", static=True)
    assert not review(mirror, VisiblePools([pool()], "team-a")).refusals


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "amd.com/gpu.2", "example.com.gpu.2", "cpu"])
def test_what_is_not_ours_is_left_alone(key: str) -> None:
    decision = decide(spec(container({key: "2"}, {key: "1"})))
    assert (decision.patch, decision.refusals) == ([], ())


def test_a_quota_of_a_pool_that_is_not_there_is_named() -> None:
    """Instead of the profiles of a pool of which the namespace has no quota."""
    (sentence,) = decide(asking("mizar.share/gpu.3"), own=("nosuch",)).refusals
    assert "there is no pool 'nosuch', which a GPUQuota of the namespace names" in sentence
    (sentence,) = decide(asking("mizar.share/gpu.3"), own=("default", "nosuch")).refusals
    assert "pool 'default' has no profile of 3 devices" in sentence


def test_what_nobody_offers_may_be_a_pool_that_we_have_not_heard_of() -> None:
    assert decide(asking("amd.com/gpu.2")).doubtful
    assert not decide(asking("mizar.share/gpu.2")).doubtful


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (
            asking("team-b.mizar.share/gpu.2"),
            "container 'main', team-b.mizar.share/gpu.2: it belongs to namespace 'team-b': ask for"
            " mizar.share/gpu.2, which gives you devices of your own namespace",
        ),
        (
            asking("mizar.share.gpu.3"),
            "container 'main', mizar.share.gpu.3: pool 'default' has no profile of 3 devices: ask"
            " for one of mizar.share/gpu.2, mizar.share/gpu.4, mizar.share/gpu.8,"
            " mizar.share/gpu.16",
        ),
        (
            spec(container({"mizar.share/gpu.2": "500m"})),
            "container 'main', mizar.share/gpu.2: 500m is a fraction: ask for 1 or another whole"
            " number; the number in the name says which part of a card one device is",
        ),
        (
            spec(container({"mizar.share/gpu.2": "2"}, {"mizar.share/gpu.2": "1"})),
            f"container 'main', {MINE}: requests 1 and limits 2 differ: give only limits",
        ),
        (
            spec(container({}, {"mizar.share/gpu.2": "1"})),
            f"container 'main', {MINE}: it is only in requests: put it into limits",
        ),
        (
            spec(container({"mizar.share/gpu.2": "1", "mizar.share.gpu.2": "1"})),
            f"container 'main', {MINE}: mizar.share.gpu.2 and mizar.share/gpu.2 are the same:"
            " keep one of them",
        ),
        (
            spec(container({"mizar.share/gpu.2": "1", "mizar.share/gpu.4": "1"})),
            "container 'main' asks for team-a.mizar.share/gpu.2 and team-a.mizar.share/gpu.4:"
            " it can have devices of one of them only",
        ),
        *(
            (
                spec(container({"mizar.share/gpu.2": "1", cards: "1"})),
                f"container 'main' asks for {cards} and {MINE}: it can have whole cards or"
                " shares; use two containers",
            )
            for cards in ("nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu.nvidia.com")
        ),
    ],
)
def test_refusals_say_what_to_do(pod: Object, sentence: str) -> None:
    assert decide(pod).refusals == (sentence,)


def test_what_a_container_asks_none_of_is_no_other_resource() -> None:
    """Charts write 0 for what they have a value for and nobody wants."""
    pod = spec(
        container({"mizar.share/gpu.2": "1", "mizar.share/gpu.4": "0", "nvidia.com/gpu": "0"})
    )
    assert decide(pod).refusals == ()


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("mizar.share/gpu.02", "write mizar.share/gpu.2"),
        ("mizar.share.gpu.02", "write mizar.share/gpu.2"),
        ("mizar.share/gpu-2", "write mizar.share/gpu.2"),
        ("mizar.share/GPU.4", "write mizar.share/gpu.4"),
        ("mizar.share.vgpu-4", "write mizar.share/gpu.4"),
        ("team-a.mizar.share/gpu.02", "write mizar.share/gpu.2"),
        ("mizar.share.gpu/2", "write mizar.share/gpu.2"),
        ("mizar.share/gpu", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
        ("mizar.share.gpu", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
        ("mizar.share/gpu.x", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
        ("mizar.share/gpu.0", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
        ("mizar.share/gpu.20000", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
        ("mizar.share/half", "ask for one of mizar.share/gpu.2, mizar.share/gpu.4,"),
    ],
)
@pytest.mark.parametrize("template", [False, True])
def test_a_name_that_means_a_share_and_is_none(key: str, instead: str, template: bool) -> None:
    (sentence,) = decide(asking(key), template=template).refusals
    assert sentence.startswith(f"container 'main', {key}: it names no profile: {instead}")


def test_a_misspelt_name_without_any_pool() -> None:
    other = pool("other", resourcePrefix="example.com")
    (sentence,) = decide(asking("mizar.share/gpu"), other).refusals
    assert sentence.endswith("ask for mizar.share/gpu.N, with the N of a profile of a GPUPool")


def test_a_misspelt_name_of_a_pool_with_another_prefix() -> None:
    own = pool(resourcePrefix="gpus.example.com")
    (sentence,) = decide(asking("gpus.example.com/gpu.02"), own).refusals
    assert sentence.endswith("write gpus.example.com/gpu.2")
    for foreign in ("gpus.example.com/fpga", "example.com/gpu", "more.gpus.example.com.net/gpu"):
        assert decide(asking(foreign), own).refusals == ()


def test_what_was_misspelt_before_does_not_hold_up_an_update() -> None:
    """A pod cannot be corrected, and a corrected template has the right name."""
    assert decide(asking("mizar.share/gpu"), old=asking("mizar.share/gpu")) == Decision()


VGPU = "nvidia.com/vgpu"
NAMED = pool(profiles=[{"devices": 10, "cards": 1, "alias": VGPU}])
TEN = "team-a.mizar.share/gpu.10"


class TestAlias:
    def test_is_translated_and_labelled(self) -> None:
        before = asking(VGPU)
        decision = decide(before, NAMED, names=(VGPU,))
        assert limits(patched(before, decision)) == {TEN: "1", "cpu": "1"}
        assert decision.rewritten == {VGPU: TEN}
        assert any("share-pod" in str(one) for one in decision.patch)

    def test_stays_in_a_template(self) -> None:
        """Tools that compare a manifest with its object find no difference."""
        before = asking(VGPU)
        decision = decide(before, NAMED, names=(VGPU,), template=True)
        assert (decision.patch, decision.rewritten, decision.warnings) == ([], {}, ())

    def test_replaces_the_resources_name_in_a_template(self) -> None:
        """An earlier version of the webhook translated it there, and `kubectl apply` sends it
        again."""
        made = asking("mizar.share/gpu.10")
        again = with_also(made, VGPU, "1")
        after = patched(again, decide(again, NAMED, names=(VGPU,), old=made, template=True))
        assert limits(after) == {VGPU: "1", "cpu": "1"}

    def test_is_the_same_as_the_profiles_own_name(self) -> None:
        both = spec(container({VGPU: "1", "mizar.share/gpu.10": "1"}))
        (sentence,) = decide(both, NAMED, names=(VGPU,)).refusals
        assert "are the same: keep one of them" in sentence

    def test_the_same_manifest_again_changes_nothing(self) -> None:
        before = asking(VGPU)
        there = patched(before, decide(before, NAMED, names=(VGPU,)))
        again = with_also(there, VGPU, "1")
        after = patched(again, decide(again, NAMED, names=(VGPU,), old=there))
        assert limits(after) == limits(there)

    def test_without_the_installations_leave_it_is_somebody_elses(self) -> None:
        assert decide(asking(VGPU), NAMED) == Decision()

    def test_that_no_pool_has(self) -> None:
        decision = decide(asking(VGPU), names=(VGPU,))
        assert "no profile of a GPUPool has this alias" in decision.refusals[0]
        assert decision.doubtful, "the pool may be new"
        decision = decide(asking(VGPU), names=(VGPU,), template=True)
        assert decision.warnings and not decision.refusals

    def test_below_mizars_own_prefix_it_is_no_mistake(self) -> None:
        small = pool(profiles=[{"devices": 10, "cards": 1, "alias": "mizar.share/small"}])
        decision = decide(asking("mizar.share/small"), small, names=("mizar.share/small",))
        assert decision.rewritten == {"mizar.share/small": TEN}


class TestLabel:
    """The operator watches pods by label, so every share pod has it."""

    @pytest.mark.parametrize("labels", [None, {}, {"app": "x"}, {"mizar.share/share-pod": "no"}])
    def test_a_share_pod_gets_it(self, labels: dict[str, str] | None) -> None:
        metadata = {} if labels is None else {"labels": labels}
        spec = asking("mizar.share/gpu.2")
        made = patched_object({"metadata": metadata, "spec": spec}, decide(spec, labels=labels))
        assert made["metadata"]["labels"] == {**(labels or {}), "mizar.share/share-pod": "true"}

    def test_also_when_its_name_needs_no_translation(self) -> None:
        pod = {"metadata": {}, "spec": asking(MINE)}
        assert patched_object(pod, decide(pod["spec"]))["metadata"]["labels"]

    def test_a_share_pod_that_has_the_label_keeps_it(self) -> None:
        assert decide(asking(MINE), labels={"mizar.share/share-pod": "true"}) == Decision()

    @pytest.mark.parametrize("key", ["nvidia.com/gpu", "cpu", "amd.com/gpu.2"])
    def test_other_pods_do_not_get_it(self, key: str) -> None:
        assert decide(asking(key)).patch == []

    def test_templates_need_none(self) -> None:
        assert decide(asking("mizar.share/gpu.2"), template=True).patch == []


MAY_PREEMPT = {"priority": 1, "preemptionPolicy": "PreemptLowerPriority"}
GATE = {"name": "mizar.share/preemption"}


class TestPreemptionGate:
    """A pod that may preempt others waits while a shadow pod is on its way for it."""

    @pytest.mark.parametrize("priority", [MAY_PREEMPT, {"priority": 2_000_000_000}])
    @pytest.mark.parametrize("gates", [[], [{"name": "example.com/other"}]])
    def test_a_pod_that_may_preempt_gets_one(self, priority: Object, gates: list[Object]) -> None:
        pod = asking("mizar.share/gpu.2") | priority | ({"schedulingGates": gates} if gates else {})
        assert patched(pod, decide(pod))["schedulingGates"] == [*gates, GATE]

    @pytest.mark.parametrize(
        "priority",
        [{}, {"priority": 0}, {"priority": -1}, {"priority": 1, "preemptionPolicy": "Never"}],
    )
    def test_others_get_none(self, priority: Object) -> None:
        pod = asking("mizar.share/gpu.2") | priority
        assert "schedulingGates" not in patched(pod, decide(pod))

    @pytest.mark.parametrize("key", ["nvidia.com/gpu", "cpu"])
    def test_nor_pods_that_request_no_share(self, key: str) -> None:
        assert decide(asking(key) | MAY_PREEMPT).patch == []

    def test_nor_those_that_request_no_devices(self) -> None:
        pod = spec(container({MINE: "0"})) | MAY_PREEMPT
        assert "schedulingGates" not in patched(pod, decide(pod))

    def test_nor_templates_and_pods_that_exist(self) -> None:
        """Kubernetes allows no gate to be added later."""
        pod = asking("mizar.share/gpu.2") | MAY_PREEMPT
        assert decide(pod, template=True).patch == []
        old = asking("mizar.share/gpu.4")
        assert "schedulingGates" not in patched(pod, decide(pod, old=old))

    def test_nor_the_mirror_of_a_static_pod(self) -> None:
        """It has a node, and the API server refuses a gate beside that."""
        pod = asking(MINE) | MAY_PREEMPT | {"nodeName": "node-1"}
        mirror = PodSpec(pod, "team-a", "/spec", static=True)
        decision = review(mirror, VisiblePools((pool(),), "team-a", (), ()), gates=True)
        assert "schedulingGates" not in patched(pod, decision)

    def test_once(self) -> None:
        """The API server may call the webhook again for the same pod."""
        pod = asking(MINE) | MAY_PREEMPT | {"schedulingGates": [GATE]}
        assert patched(pod, decide(pod))["schedulingGates"] == [GATE]

    def test_not_where_the_installation_wants_none(self) -> None:
        pod = asking(MINE) | MAY_PREEMPT
        assert "schedulingGates" not in patched(pod, decide(pod, gates=False))


class TestScaleUpDelay:
    """cluster-autoscaler adds nodes for shadow pods, and ignores the share pods that wait."""

    KEY = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"

    def annotations(self, there: dict[str, str] | None = None, **how: Any) -> Object | None:
        meta: Object = {} if there is None else {"annotations": there}
        pod = {"metadata": meta, "spec": asking(how.pop("key", "mizar.share/gpu.2"))}
        made = patched_object(pod, decide(pod["spec"], annotations=there, delay="8760h", **how))
        found: Object | None = made["metadata"].get("annotations")
        return found

    def test_a_share_pod_gets_one(self) -> None:
        assert self.annotations() == {self.KEY: "8760h"}
        assert self.annotations({"a": "b"}) == {"a": "b", self.KEY: "8760h"}
        assert self.annotations(key=MINE) == {self.KEY: "8760h"}

    def test_a_pods_own_stays(self) -> None:
        assert self.annotations({self.KEY: "5m"}) == {self.KEY: "5m"}

    def test_no_template_no_pod_that_exists_and_no_other_pod_gets_one(self) -> None:
        assert self.annotations(template=True) is None
        assert self.annotations(old=asking("mizar.share/gpu.4")) is None
        assert self.annotations(key="nvidia.com/gpu") is None

    def test_none_where_the_installation_wants_none(self) -> None:
        pod = {"metadata": {}, "spec": asking(MINE)}
        assert "annotations" not in patched_object(pod, decide(pod["spec"]))["metadata"]


def test_without_any_pool_a_pod_would_wait_for_ever() -> None:
    sentence = "no GPUPool offers mizar.share/gpu.2: create one, then the pod again"
    other = pool("other", resourcePrefix="example.com")
    assert decide(asking("mizar.share.gpu.2"), other).refusals == (
        f"container 'main', mizar.share.gpu.2: {sentence}",
    )
    template = decide(asking("mizar.share.gpu.2"), other, template=True)
    assert template.warnings == (f"container 'main', mizar.share.gpu.2: {sentence}",)
    assert "mizar.share/gpu.2" in limits(patched(asking("mizar.share.gpu.2"), template))


def test_a_tenants_name_without_any_pool_is_ours_all_the_same() -> None:
    other = pool("other", resourcePrefix="example.com")
    (sentence,) = decide(asking(MINE), other).refusals
    assert sentence.endswith(f"no GPUPool offers {MINE}: create one, then the pod again")


def test_what_a_container_requests_is_not_in_the_limits_of_another() -> None:
    apart = spec(
        container({"mizar.share/gpu.2": "1"}, {}, name="one"),
        container({}, {"mizar.share/gpu.2": "1"}, name="two"),
    )
    assert decide(apart).refusals == (
        f"container 'two', {MINE}: it is only in requests: put it into limits",
    )


def test_a_template_with_an_unknown_profile_gets_a_warning() -> None:
    decision = decide(asking("mizar.share.gpu.3"), template=True)
    assert decision.refusals == ()
    assert "has no profile of 3 devices" in decision.warnings[0]


def test_a_template_with_a_foreign_resource_is_refused() -> None:
    assert decide(asking("team-b.mizar.share/gpu.2"), template=True).refusals


def test_a_tenants_name_in_a_shared_pool() -> None:
    (sentence,) = decide(asking(MINE), SHARED).refusals
    assert sentence.endswith("is shared by all namespaces: ask for mizar.share/gpu.2")


def test_a_namespace_that_can_be_no_tenant() -> None:
    (sentence,) = decide(asking("mizar.share/gpu.2"), namespace="requests").refusals
    assert "use another name" in sentence


def test_the_pool_that_the_namespaces_quota_names_decides() -> None:
    small = pool("small", profiles=[{"devices": 3, "cards": 1}])
    assert decide(asking("mizar.share/gpu.3"), pool("big"), small).refusals == ()
    assert decide(asking("mizar.share/gpu.3"), pool("big"), small, own=("big",)).refusals
    shared = pool("shared", tenancy="Shared")
    before = asking("mizar.share/gpu.2")
    assert patched(before, decide(before, pool("apart"), shared, own=("shared",))) == before
    assert patched(before, decide(before, pool("apart"), shared, own=("apart",))) != before


def test_a_pool_called_like_a_tenants_resource_takes_nothing_from_the_tenant() -> None:
    # Neither the first pool by name nor the one that the namespace's quota names helps the pod.
    odd = pool("a", resourcePrefix="team-a.mizar.share")
    for own in ((), ("a",)):
        assert patched(asking(MINE), decide(asking(MINE), pool(), odd, own=own)) == asking(MINE)


class TestUpdates:
    """`kubectl apply` of the same manifest again sends the user's spelling beside ours."""

    def test_a_template_of_thousands_of_containers_takes_no_more_than_its_time(self) -> None:
        many = range(4000)
        made = spec(*(container({"mizar.share/gpu.2": "1"}, name=f"c{at}") for at in many))
        again = spec(
            *(
                container({"mizar.share/gpu.2": "1", "mizar.share.gpu.2": "1"}, name=f"c{at}")
                for at in many
            )
        )
        began = process_time()
        decision = decide(again, old=made, template=True)
        # Compared in pairs, they took a quarter of a minute, and all other reviews waited.
        assert process_time() - began < 5
        assert not decision.refusals

    @pytest.mark.parametrize("template", [False, True])
    def test_the_same_manifest_again_changes_nothing(self, template: bool) -> None:
        made = patched(asking("mizar.share.gpu.2"), decide(asking("mizar.share.gpu.2")))
        if template:
            made = patched(asking("mizar.share.gpu.2"), decide_template("mizar.share.gpu.2"))
        again = with_also(made, "mizar.share.gpu.2", "1")
        assert patched(again, decide(again, old=made, template=template)) == made

    def test_another_amount(self) -> None:
        made = asking("mizar.share/gpu.2")
        again = with_also(made, "mizar.share.gpu.2", "2")
        after = patched(again, decide(again, old=made, template=True))
        assert limits(after) == {"mizar.share/gpu.2": "2", "cpu": "1"}

    def test_another_profile(self) -> None:
        made = asking("mizar.share/gpu.2")
        again = with_also(made, "mizar.share.gpu.4", "1")
        after = patched(again, decide(again, old=made, template=True))
        assert limits(after) == {"mizar.share/gpu.4": "1", "cpu": "1"}

    def test_a_container_that_is_left_alone_keeps_what_it_asks_for(self) -> None:
        one, two = (container({"mizar.share/gpu.2": "1"}, name=name) for name in ("one", "two"))
        typed = container({"mizar.share.gpu.2": "1"}, name="two")
        again = spec(one, typed)
        after = patched(again, decide(again, old=spec(one), template=True))
        assert after == spec(one, two)

    @pytest.mark.parametrize("key", ["team-b.mizar.share/gpu.2", "mizar.share/gpu.99"])
    def test_what_is_wrong_already_may_stay(self, key: str) -> None:
        """Otherwise the pod's finalizers and labels could never change again."""
        assert decide(asking(key), old=asking(key)) == Decision()

    def test_new_wrongs_are_refused(self) -> None:
        before, after = asking("mizar.share/gpu.2"), asking("team-b.mizar.share/gpu.2")
        assert decide(after, old=before, template=True).refusals


def decide_template(key: str) -> Decision:
    return decide(asking(key), template=True)


def with_also(made: Object, key: str, amount: str) -> Object:
    (one,) = made["containers"]
    both = {**one["resources"]["limits"], key: amount}
    return spec(container(both))


def test_a_spec_with_nothing_in_it() -> None:
    for empty in ({}, {"containers": None}, {"containers": [{"name": "x", "resources": None}]}):
        assert decide(empty) == Decision()


def packed(pod: Object, *pools: GPUPool, **how: Any) -> list[Object]:
    """The terms of the pod affinity that the pod gets, all of them with the largest weight."""
    pools = pools or (pool(nodePolicy="Binpack"),)
    affinity = patched(pod, decide(pod, *pools, **how)).get("affinity") or {}
    found = affinity.get("podAffinity", {}).get(PREFERRED, [])
    assert all(one["weight"] == 100 for one in found)
    return [one["podAffinityTerm"] for one in found]


def in_use(name: str, profile: int, **more: Any) -> Object:
    labels = {"pool": name, "in-use": "true", "profile": str(profile)}
    return {
        "labelSelector": {
            "matchLabels": {f"mizar.share/{key}": one for key, one in labels.items()}
        },
        "topologyKey": "kubernetes.io/hostname",
        **more,
    }


def test_pods_of_a_pool_that_packs_prefer_nodes_with_shadow_pods_in_use() -> None:
    both = spec(
        container({"mizar.share/gpu.4": "1"}, name="a"),
        container({"mizar.share/gpu.2": "1"}, name="b"),
        container({"mizar.share/gpu.8": "0"}, name="c"),
    )
    assert packed(both) == [in_use("default", 2), in_use("default", 4)]
    assert packed(asking("mizar.share/gpu.2"), pool()) == []
    shared = pool("all", nodePolicy="Binpack", tenancy="Shared")
    (term,) = packed(asking("mizar.share/gpu.2"), shared)
    assert term == in_use("all", 2, namespaceSelector={})


def test_of_two_pools_that_pack_the_first_requests_counts() -> None:
    pools = [pool(one, nodePolicy="Binpack", resourcePrefix=f"{one}.example") for one in ("a", "b")]
    both = spec(
        container({"b.example/gpu.2": "1"}, name="x"), container({"a.example/gpu.2": "1"}, name="y")
    )
    assert packed(both, *pools) == [in_use("b", 2)]


@pytest.mark.parametrize(
    "own",
    [
        {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1}]}}},
        {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
    ],
    ids=["affinity", "anti-affinity", "spread"],
)
def test_a_pod_that_says_how_it_is_spread_is_not_packed(own: Object) -> None:
    pod = {**asking("mizar.share/gpu.2"), **own}
    made = patched(pod, decide(pod, pool(nodePolicy="Binpack")))
    assert {key: made[key] for key in own} == own


def test_node_affinity_stays_beside_the_pods() -> None:
    node_affinity = {"nodeAffinity": {"x": []}}
    pod = {**asking("mizar.share/gpu.2"), "affinity": node_affinity}
    made = patched(pod, decide(pod, pool(nodePolicy="Binpack")))
    assert made["affinity"].keys() == {"nodeAffinity", "podAffinity"}
    assert made["affinity"].items() >= node_affinity.items()


def test_templates_and_pods_that_are_there_are_not_packed() -> None:
    pod = asking("team-a.mizar.share/gpu.2")
    assert packed(pod, template=True) == []
    assert packed(pod, old=asking("team-a.mizar.share/gpu.4")) == []
    assert packed(pod, old=None)
