"""The check before an uninstall, and its message when Mizar must stay."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import Forbidden, KubeError, NotFound, NotServed, Unavailable
from mizar_kube.kinds import DEPLOYMENT, GPU_QUOTA, POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator import uninstall
from mizar_operator.uninstall import Held, Settings

MINUTE = ["--wait=60", "--release=gpus", "--revision=3", "--namespace=infra"]


def shadow(name: str, *holders: str, tenant: str = "team-a", deleted: bool = False) -> Object:
    meta: Object = {"namespace": tenant, "name": name}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    devices: list[Object] = [{"id": "free"}]
    for one in holders:
        holder = {"namespace": tenant, "name": one, "container": "main"}
        devices.append({"id": one, "holder": holder})
    return {"metadata": meta, "spec": {"quota": "gpus"}, "status": {"devices": devices}}


def quota(**meta: str) -> Object:
    return {"metadata": {"namespace": "team-a", "name": "gpus", **meta}}


class Api:
    """Answers with what a test put there; `then` may change that at each second that goes by."""

    def __init__(self) -> None:
        self.lists: dict[Kind, list[Object] | KubeError] = {
            SHADOW_POD: [],
            GPU_QUOTA: [quota()],
            POD: [],
        }
        self.operator: Object | KubeError = {"status": {"readyReplicas": 1}}
        self.then: Callable[[], None] = lambda: None
        self.seconds = 0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += 1
        self.then()

    async def list(self, kind: Kind, label_selector: str = "") -> Listing:
        assert label_selector == ("mizar.share/spot-pod=true" if kind == POD else "")
        found = self.lists[kind]
        if isinstance(found, KubeError):
            raise found
        return Listing(found, "1")

    async def get(self, ref: Ref) -> Object:
        assert ref == Ref(DEPLOYMENT, "mizar-operator", "infra")
        if isinstance(self.operator, KubeError):
            raise self.operator
        return self.operator

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *_: object) -> None:
        return


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()

    async def connect(_: Any) -> Api:
        return made

    monkeypatch.setattr(KubeClient, "connect", connect)
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    return made


async def left(api: Api) -> list[Held]:
    return await uninstall.still_held(api, 60, api.now)  # type: ignore[arg-type]


async def test_without_shadow_pods_it_may_go_at_once(api: Api) -> None:
    assert await left(api) == []
    assert api.seconds == 0


@pytest.mark.parametrize("error", [NotFound, NotServed])
@pytest.mark.parametrize("gone", [SHADOW_POD, GPU_QUOTA])
async def test_without_the_definitions_it_may_go(
    api: Api, gone: Kind, error: type[KubeError]
) -> None:
    api.lists[gone] = error("the server could not find the requested resource", status=404)
    assert await left(api) == []


async def test_those_that_nobody_told_to_go_are_not_waited_for(api: Api) -> None:
    api.lists[SHADOW_POD] = [shadow("a"), shadow("b", deleted=True)]
    assert [one.going for one in await left(api)] == [False, True]
    assert api.seconds == 0


@pytest.mark.parametrize("how", ["deleted", "quota gone", "quota going", "no definition"])
async def test_those_on_their_way_out_are_waited_for(api: Api, how: str) -> None:
    api.lists[SHADOW_POD] = [shadow("a", deleted=how == "deleted")]
    if how != "deleted":
        answers: dict[str, list[Object] | KubeError] = {
            "quota gone": [],
            "quota going": [quota(deletionTimestamp="2026-01-01T00:00:00Z")],
            "no definition": NotFound("no such kind"),
        }
        api.lists[GPU_QUOTA] = answers[how]

    def then() -> None:
        if api.seconds == 5:
            api.lists[SHADOW_POD] = []

    api.then = then
    assert await left(api) == []
    assert api.seconds == 5


async def test_they_are_waited_for_no_longer_than_asked(api: Api) -> None:
    api.lists[SHADOW_POD] = [shadow("a", "train", deleted=True)]
    assert await left(api) == [Held("team-a/a", True, frozenset({"team-a/train"}))]
    assert api.seconds == 60


async def test_an_api_server_that_is_away_is_asked_again(api: Api) -> None:
    api.lists[SHADOW_POD] = Unavailable("away")

    def then() -> None:
        api.lists[SHADOW_POD] = []

    api.then = then
    assert await left(api) == []
    assert api.seconds == 1


def sentences(*held: Held, start: str = "") -> list[str]:
    settings = uninstall.load(Settings, MINUTE)
    return uninstall.refusal(held, settings, start).splitlines()


def idle(count: int) -> list[Held]:
    return [Held(f"team-a/{number}", going=False) for number in range(count)]


def used(*users: str, going: bool = False) -> Held:
    return Held("team-a/used", going, frozenset(users))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (idle(1), "1 shadow pod holds cards, not in use."),
        (idle(2), "2 shadow pods hold cards, none of them in use."),
        ([used("a/b")], "1 shadow pod holds cards, in use by a/b."),
        ([*idle(2), used("a/b", "a/c")], "3 shadow pods hold cards, 1 of them in use by a/b, a/c."),
        (
            [used("a/1", "a/2"), used("a/3", "a/4", "a/5")],
            "2 shadow pods hold cards, 2 of them in use by a/1, a/2, a/3 and 2 more.",
        ),
    ],
)
def test_it_is_told_who_holds_cards(held: list[Held], words: str) -> None:
    first = sentences(*held)[0]
    assert first == f"Mizar is not uninstalled, since {words} Everything keeps running."


def test_it_is_told_what_to_do() -> None:
    assert sentences(*idle(1), used("a/b"))[1:] == [
        "To uninstall it:",
        "  kubectl delete gpuquota --all --all-namespaces",
        "  end the pods that use them",
        "  kubectl get shadowpods --all-namespaces  # wait until it shows none",
        "  helm uninstall gpus --namespace infra",
        "To leave shadow pods, their cards and their users as they are, for a later install:",
        "  helm uninstall gpus --namespace infra --no-hooks",
        "To keep Mizar, roll the release back, or helm refuses upgrades:",
        "  helm rollback gpus 3 --namespace infra",
    ]


def test_nobody_is_told_to_do_what_is_done() -> None:
    steps = sentences(Held("team-a/a", going=True))
    assert not [one for one in steps if "gpuquota" in one or "end the pods" in one]


def test_an_operator_that_does_not_run_is_to_be_started_first() -> None:
    assert sentences(*idle(1), start="start it")[2] == "  start it"


SCALE = "kubectl scale deployment mizar-operator --namespace infra --replicas=1"
ROLLBACK = "helm rollback gpus 3 --namespace infra"


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        ({"status": {"readyReplicas": 2}}, ""),
        ({"status": {}}, SCALE),
        ({}, SCALE),
        (NotFound("gone"), ROLLBACK),
        (Forbidden("no"), ""),
    ],
)
async def test_what_starts_the_operator(api: Api, answer: Any, command: str) -> None:
    """Of a Deployment that is gone, for example after an uninstall that stopped half-way, there is
    nothing to scale."""
    api.operator = answer
    settings = uninstall.load(Settings, MINUTE)
    said = await uninstall.start_operator(api, settings)  # type: ignore[arg-type]
    assert said.partition("  #")[0] == command


def test_the_program_succeeds_when_nothing_is_held(api: Api) -> None:
    uninstall.main(MINUTE)


def test_the_program_fails_with_the_sentences(api: Api) -> None:
    api.lists[SHADOW_POD] = [shadow("a", "train")]
    with pytest.raises(SystemExit, match="in use by team-a/train"):
        uninstall.main(MINUTE)


def test_the_program_fails_when_it_cannot_tell(api: Api) -> None:
    api.lists[SHADOW_POD] = Forbidden("shadowpods is forbidden")
    with pytest.raises(SystemExit, match=r"cannot tell whether .* shadowpods is forbidden"):
        uninstall.main([*MINUTE, "--wait=0"])


def spot(name: str, phase: str = "Running", cards: int = 1, **spec: str) -> Object:
    meta = {"namespace": "team-a", "name": name}
    containers = [{"name": "main", "resources": {"limits": {"mizar.spot/gpu": str(cards)}}}]
    spec = {"containers": containers, **spec}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def test_borrowed_cards_would_not_go_back_either(api: Api) -> None:
    ended = spot("ended", "Failed", nodeName="n")
    api.lists[POD] = [spot(name, nodeName="n") for name in "dcba"] + [ended, spot("waits")]
    with pytest.raises(SystemExit) as said:
        uninstall.main(MINUTE)
    first, *steps = str(said.value).splitlines()
    assert first == (
        "Mizar is not uninstalled, since team-a/a, team-a/b, team-a/c and 1 more borrow cards,"
        " which would never go back to their owners. Everything keeps running."
    )
    rollback, upgrade = (one.strip() for one in steps[1:3])
    assert rollback.startswith("helm rollback gpus 3 --namespace infra ")
    assert upgrade.startswith("helm upgrade gpus CHART --namespace infra --reset-then-reuse-values")
    assert steps[-1] == "  helm uninstall gpus --namespace infra"


def test_an_api_server_that_is_away_is_asked_for_spot_pods_again(api: Api) -> None:
    api.lists[POD] = Unavailable("away")

    def then() -> None:
        api.lists[POD] = []

    api.then = then
    uninstall.main(MINUTE)
    assert api.seconds == 1


async def test_all_waits_together_take_no_longer_than_asked(api: Api) -> None:
    api.lists |= {SHADOW_POD: [shadow("a", deleted=True)], POD: Unavailable("away")}

    def then() -> None:
        if api.seconds == 40:
            api.lists[SHADOW_POD] = []

    api.then = then
    settings = uninstall.load(Settings, MINUTE)
    with pytest.raises(Unavailable):
        await uninstall._reasons(api, settings, 60.0, api.now)  # type: ignore[arg-type]
    assert api.seconds == 60


def test_spot_pods_that_wait_or_have_ended_borrow_nothing(api: Api) -> None:
    api.lists[POD] = [spot("ended", "Succeeded", nodeName="n"), spot("waits", "Pending")]
    uninstall.main(MINUTE)


def test_a_label_that_anyone_can_set_holds_up_no_uninstall(api: Api) -> None:
    labelled = {**spot("labelled", nodeName="n"), "spec": {"nodeName": "n", "containers": []}}
    api.lists[POD] = [labelled, spot("none", cards=0, nodeName="n")]
    uninstall.main(MINUTE)


HOLD = [*MINUTE, "--hold"]


async def held_for(api: Api, *argv: str) -> float:
    """For how long an uninstall is held."""
    settings = uninstall.load(Settings, [*HOLD, *argv])
    await uninstall.hold(api, settings, api.now)  # type: ignore[arg-type]
    return api.seconds


@pytest.fixture
def clock(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API whose pauses take their whole time, after each of which `then` is called."""

    async def sleep(seconds: float) -> None:
        api.seconds += int(seconds)
        api.then()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return api


async def test_with_hold_it_waits_until_no_shadow_pod_is_left(
    clock: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for one that nobody has told to go, and for longer than `wait`."""
    clock.lists[SHADOW_POD] = [shadow("a", "train")]

    def then() -> None:
        if clock.seconds >= 3600:
            clock.lists[SHADOW_POD] = []

    clock.then = then
    assert await held_for(clock) == 3600
    said = capsys.readouterr().err
    assert said.count("1 shadow pod holds cards, in use by team-a/train.") == 20
    assert "kubectl delete gpuquota --all --all-namespaces" in said
    assert "helm" not in said


async def test_with_hold_new_reasons_are_told_at_once(
    clock: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.lists[SHADOW_POD] = [shadow("a", "train")]

    def then() -> None:
        if clock.seconds == 30:
            clock.lists[SHADOW_POD] = [shadow("a")]
        elif clock.seconds == 60:
            clock.lists[SHADOW_POD] = []
            clock.lists[POD] = [spot("b", nodeName="n")]
        elif clock.seconds == 90:
            clock.lists[POD] = []

    clock.then = then
    assert await held_for(clock) == 90
    said = capsys.readouterr().err
    firsts = [one for one in said.splitlines() if one.startswith("Mizar is not uninstalled")]
    assert [one.partition(", since ")[2].partition(".")[0] for one in firsts] == [
        "1 shadow pod holds cards, in use by team-a/train",
        "1 shadow pod holds cards, not in use",
        "team-a/b borrow cards, which would never go back to their owners",
    ]
    assert "helm" not in said


@pytest.mark.parametrize("kind", [SHADOW_POD, POD])
async def test_with_hold_it_goes_on_when_it_cannot_tell(
    clock: Api, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.lists[kind] = Forbidden("this is forbidden")

    def then() -> None:
        if clock.seconds >= 600:
            clock.lists[kind] = []

    clock.then = then
    assert await held_for(clock) == 600
    assert capsys.readouterr().err.count("cannot tell whether") == 4


async def test_with_hold_an_operator_that_is_gone_is_installed_without_helm(clock: Api) -> None:
    clock.operator = NotFound("gone")
    settings = uninstall.load(Settings, HOLD)
    said = await uninstall.start_operator(clock, settings)  # type: ignore[arg-type]
    assert said.startswith("install Mizar again ")


def test_the_program_with_hold_succeeds_once_nothing_is_held(clock: Api) -> None:
    clock.lists[SHADOW_POD] = [shadow("a", "train")]

    def then() -> None:
        clock.lists[SHADOW_POD] = []

    clock.then = then
    uninstall.main(HOLD)
    assert clock.seconds == 10
