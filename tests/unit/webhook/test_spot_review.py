"""How admission changes a pod that borrows cards, and for what it refuses one."""

from typing import Any

import pytest

from mizar_operator.webhook.pod_review import Decision
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.spot_review import Borrower, SpotSettings, asks_for_spot, review_spot
from unit.webhook.builders import Object, asking, container, patched_object, spec

SPOT = "mizar.spot/gpu"
LOST = {"mizar.share/may-be-lost": "true"}
GATE = {"name": "mizar.share/spot"}
LENT = SpotSettings(enabled=True, priority_class="mizar-spot")
THREE = Borrower("team-a", 3, {"nvidia.com/gpu", "example.com/card"})


def decide(
    pod: Object, borrower: Borrower = THREE, settings: SpotSettings = LENT, **more: Any
) -> Decision:
    """The decision on a spec, by default of a pod that a controller has made."""
    given = {"controlled": True} | more
    return review_spot(PodSpec(pod, "team-a", **given), borrower, settings)


def test_a_spot_pod_waits_for_its_turn() -> None:
    pod = {"metadata": {}, "spec": asking(SPOT)}
    made = patched_object(pod, decide(pod["spec"]))
    assert made["metadata"]["labels"] == {"mizar.share/spot-pod": "true"}
    assert made["spec"]["schedulingGates"] == [GATE]
    assert made["spec"]["priorityClassName"] == "mizar-spot"


def test_autoscalers_ignore_a_spot_pod_where_the_installation_wants_it() -> None:
    pod = {"metadata": {}, "spec": asking(SPOT)}
    settings = SpotSettings(enabled=True, scale_up_delay="8760h")
    made = patched_object(pod, decide(pod["spec"], settings=settings))
    key = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
    assert made["metadata"]["annotations"] == {key: "8760h"}


def test_what_is_there_already_stays() -> None:
    pod = asking(SPOT) | {"schedulingGates": [{"name": "mine"}], "priorityClassName": "mine"}
    labels = {"mizar.share/spot-pod": "no", "app": "x"}
    before = {"metadata": {"labels": labels}, "spec": pod}
    made = patched_object(before, decide(pod, labels=labels))
    assert made["metadata"]["labels"] == {"mizar.share/spot-pod": "true", "app": "x"}
    assert made["spec"]["schedulingGates"] == [{"name": "mine"}, GATE]
    assert made["spec"]["priorityClassName"] == "mine"
    again = decide(made["spec"], labels=made["metadata"]["labels"])
    assert again.patch == []


def test_the_priority_that_the_api_server_has_filled_in_goes() -> None:
    pod = asking(SPOT) | {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    made = patched_object({"metadata": {}, "spec": pod}, decide(pod))["spec"]
    assert not {"priority", "preemptionPolicy"} & set(made)
    kept = patched_object({"metadata": {}, "spec": pod}, decide(pod, settings=SpotSettings(True)))
    assert kept["spec"]["priority"] == 0
    assert "priorityClassName" not in kept["spec"]


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (
            spec(container({SPOT: "1"}), container({"nvidia.com/gpu": "1"}, name="two")),
            "container 'two' asks for nvidia.com/gpu: a pod that borrows cards by mizar.spot/gpu"
            " can have neither whole cards nor shares: use another pod",
        ),
        (
            spec(container({SPOT: "1"}), init=[container({"example.com/card": "1"}, name="i")]),
            "container 'i' asks for example.com/card: a pod that borrows cards by mizar.spot/gpu"
            " can have neither whole cards nor shares: use another pod",
        ),
        *(
            (
                spec(container({SPOT: "1"}), container({key: "1"}, name="two")),
                f"container 'two' asks for {key}: a pod that borrows cards by mizar.spot/gpu"
                " can have neither whole cards nor shares: use another pod",
            )
            for key in (
                "nvidia.com/mig-1g.5gb",
                "nvidia.com/gpu.shared",
                "nvidia.com/gpumem",
                "nvidia.com/pgpu",
                "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
            )
        ),
        (
            spec(container({SPOT: "1", "mizar.share/gpu.2": "1"})),
            "container 'main' asks for mizar.share/gpu.2: a pod that borrows cards by"
            " mizar.spot/gpu can have neither whole cards nor shares: use another pod",
        ),
        (
            spec(container({SPOT: "2"}, {SPOT: "1"})),
            "container 'main', mizar.spot/gpu: requests 1 and limits 2 differ: give only limits",
        ),
        (
            spec(container({}, {SPOT: "1"})),
            "container 'main', mizar.spot/gpu: it is only in requests: put it into limits",
        ),
        (
            asking(SPOT, "10e399"),
            "container 'main', mizar.spot/gpu: 10e399 is more than any cluster has: ask for at most"
            " 1000000",
        ),
        (
            asking(SPOT, "0.5"),
            "container 'main', mizar.spot/gpu: 0.5 is a fraction: ask for 1 or another whole"
            " number",
        ),
        (
            asking("mizar.spot.gpu"),
            "container 'main', mizar.spot.gpu: there is no such resource: write mizar.spot/gpu",
        ),
        (
            asking("mizar.spot/gpu.2"),
            "container 'main', mizar.spot/gpu.2: there is no such resource: write mizar.spot/gpu",
        ),
    ],
)
@pytest.mark.parametrize("template", [False, True])
def test_what_can_never_be_is_refused(pod: Object, sentence: str, template: bool) -> None:
    assert sentence in decide(pod, template=template).refusals


LEND = Borrower("team-a", 0)
UNLENT: list[tuple[Borrower, SpotSettings, str]] = [
    (
        THREE,
        SpotSettings(),
        "this installation lends no cards: the chart's value spot.enabled is false",
    ),
    (LEND, LENT, "namespace 'team-a' may not borrow cards: it needs spot.max above 0 in one"),
    (
        THREE,
        LENT,
        "the pod asks for 4 cards, and spot.max of the GPUQuotas of namespace 'team-a' allows 3",
    ),
]


@pytest.mark.parametrize(("borrower", "settings", "sentence"), UNLENT)
def test_what_nobody_lends_now_may_be_lent_by_a_newer_quota(
    borrower: Borrower, settings: SpotSettings, sentence: str
) -> None:
    pod = asking(SPOT, "4")
    decision = decide(pod, borrower, settings)
    (said,) = decision.refusals
    assert said.startswith(f"{SPOT}: {sentence}")
    assert decision.doubtful
    template = decide(pod, borrower, settings, template=True)
    assert (template.refusals, template.warnings, template.patch) == ((), (said,), [])


@pytest.mark.parametrize("key", ["cpu", "nvidia.com/nic", "rdma/hca", "example.com/gpu"])
def test_what_is_no_card_may_come_with_one(key: str) -> None:
    assert not decide(spec(container({SPOT: "1", key: "1"}))).refusals


def test_the_cards_of_all_containers_count_at_once() -> None:
    one = container({SPOT: "2"}, name="one")
    assert decide(spec(one, container({SPOT: "2"}, name="two"))).refusals
    assert not decide(spec(one, init=[container({SPOT: "3"}, name="init")])).refusals


@pytest.mark.parametrize("notes", [None, {}, {"mizar.share/may-be-lost": "false"}])
def test_what_nothing_replaces_must_say_so(notes: dict[str, str] | None) -> None:
    (said,) = decide(asking(SPOT), controlled=False, annotations=notes).refusals
    assert said.startswith("nothing would replace this pod when its card goes back")
    assert not decide(asking(SPOT), controlled=False, annotations=LOST).refusals
    assert not decide(asking(SPOT), controlled=False, annotations=notes, template=True).refusals


def test_templates_stay_as_they_are() -> None:
    assert decide(asking(SPOT), template=True) == Decision()


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "cpu", "mizar.share/gpu.2", "amizar.spot/gpu"])
def test_other_pods_are_none_of_its(key: str) -> None:
    assert not asks_for_spot(PodSpec(asking(key), "team-a"))


def test_an_update_that_asks_for_nothing_new_passes() -> None:
    assert asks_for_spot(PodSpec(asking(SPOT), "team-a"))
    assert not asks_for_spot(PodSpec(asking(SPOT), "team-a", old=asking(SPOT)))


def test_an_update_sets_no_gate() -> None:
    """Kubernetes permits no scheduling gate to be added later."""
    paths = [one["path"] for one in decide(asking(SPOT), old=spec(container())).patch]
    assert paths == ["/metadata/labels"]
