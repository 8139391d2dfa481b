"""The operator is ready when share pods can be created."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, KubeError, Unavailable
from mizar_kube.kinds import Object
from mizar_operator.default_pool import default_pool
from mizar_operator.metrics import Metrics
from mizar_operator.readiness import ASKS_ALSO_THE_MUTATING, POOL_WITHIN_S, Readiness
from mizar_operator.webhook.quota_review import unquoted_numbers

CRDS = Path(__file__).parents[3] / "crds"
NO_WAY = Unavailable('failed calling webhook "quotas.mizar.share": failed to call webhook')
UNTRUSTED = Unavailable('failed calling webhook "numbers.mizar.share": x509: unknown authority')


class Api:
    """Answers dry runs of the default pool with what a test says, the last answer again and again,
    and those that go through a mutating webhook with `mutating`. Tells the schemas of a test one
    after the other, in the end none."""

    def __init__(
        self,
        *answers: KubeError | None,
        told: Sequence[Object] = (),
        mutating: Sequence[KubeError] = (Invalid("memoryScaling: must be an integer"),),
    ) -> None:
        self.asked: list[Object] = []
        self._answers: dict[bool, list[KubeError | None]] = {False: [*answers], True: [*mutating]}
        self._told = list(told)

    async def request(self, method: str, path: str, **_: Any) -> Object:
        schemas = self._told.pop(0) if self._told else {}
        return {"components": {"schemas": schemas}}

    async def create(self, obj: Object, *, dry_run: bool = False, **_: Any) -> Object:
        assert dry_run, "it keeps what it asks with"
        self.asked.append(obj)
        answers = self._answers[obj["spec"] != {}]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is not None:
            raise answer
        return obj


class Pauses:
    """A clock that only sleeping moves; what was wrong at each pause."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lengths: list[float] = []
        self.problems: list[str] = []
        self.of: Readiness | None = None
        self.read: Callable[[str], float | None] = lambda name: None
        self.reachable: list[float | None] = []
        self.most = 10_000

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert self.of is not None
        self.problems += self.of.problems()
        self.lengths.append(seconds)
        self.reachable.append(self.read("mizar_webhook_reachable"))
        self.now += seconds
        if len(self.lengths) > self.most:
            raise asyncio.CancelledError


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    found = Pauses()
    monkeypatch.setattr(asyncio, "sleep", found.sleep)
    return found


def readiness(api: Api, pauses: Pauses, makes_pool: bool = True) -> Readiness:
    metrics = Metrics()
    reached = metrics.webhook_reachable
    pauses.of = Readiness(api, makes_pool, reached, pauses)  # type: ignore[arg-type]
    pauses.read = metrics.registry.get_sample_value
    return pauses.of


async def test_before_it_has_asked_it_is_not_ready(pauses: Pauses) -> None:
    assert readiness(Api(AlreadyExists("default")), pauses).problems()


@pytest.mark.parametrize("answer", [AlreadyExists("there"), Invalid("no"), Forbidden("no")])
async def test_any_answer_but_a_lost_way_will_do(answer: KubeError, pauses: Pauses) -> None:
    found = readiness(Api(answer), pauses)
    await found.wait()
    assert (found.problems(), pauses.lengths) == ([], [])


async def test_it_waits_until_the_webhook_is_reached(pauses: Pauses) -> None:
    api = Api(*[NO_WAY] * 20, AlreadyExists("default"))
    found = readiness(api, pauses)
    await found.wait()
    assert len([one for one in api.asked if one["spec"] == {}]) == 21
    assert set(pauses.problems) == {f"the API server does not reach the webhook: {NO_WAY}"}
    assert pauses.lengths[0] < 0.5
    assert max(pauses.lengths) == 2
    assert found.problems() == []


async def test_it_waits_until_mutating_webhooks_are_reached_too(pauses: Pauses) -> None:
    """They have a certificate authority of their own, and all pods go through them."""
    found = readiness(Api(AlreadyExists("there"), mutating=[UNTRUSTED, Invalid("no")]), pauses)
    await found.wait()
    assert pauses.problems == [f"the API server does not reach the webhook: {UNTRUSTED}"]
    assert found.problems() == []


def test_api_servers_log_nothing_when_mutating_webhooks_are_asked() -> None:
    """A value of another type than its field's makes them log "failed to update managedFields", but
    for fields that may be numbers or text. Nor does the webhook refuse it, which would be logged
    too."""
    (version,) = yaml.safe_load((CRDS / "gpupools.yaml").read_text())["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert all(fields[name].get("x-kubernetes-int-or-string") for name in ASKS_ALSO_THE_MUTATING)
    assert not list(unquoted_numbers(default_pool(dict(ASKS_ALSO_THE_MUTATING))))


async def test_it_tells_when_mutating_webhooks_are_not_reached_any_more(pauses: Pauses) -> None:
    answers = [Invalid("no"), UNTRUSTED, Invalid("no")]
    found = readiness(Api(AlreadyExists("there"), mutating=answers), pauses)
    pauses.most = 2
    with suppress(asyncio.CancelledError):
        await found.run()
    assert pauses.reachable == [1, 0, 1]


async def test_it_waits_until_definitions_have_the_fields_that_it_knows(pauses: Pauses) -> None:
    """An upgrade that forgot them ends no operator that they are for."""
    kind = {"group": "mizar.share", "version": "v1alpha1", "kind": "GPUPool"}
    old = {"pool": {"x-kubernetes-group-version-kind": [kind]}}
    api = Api(AlreadyExists("default"), told=[old, old])
    found = readiness(api, pauses)
    await found.wait()
    assert len(pauses.problems) == 2 and found.problems() == []
    assert "older than this operator and lack GPUPool.spec, GPUPool.status" in pauses.problems[0]
    assert "kubectl apply --server-side --force-conflicts" in pauses.problems[0]


async def test_it_waits_for_the_pool_that_the_leader_makes(pauses: Pauses) -> None:
    api = Api(None, None, AlreadyExists("default"))
    await readiness(api, pauses).wait()
    assert pauses.problems == ["there is no default pool yet"] * 2


async def test_but_not_for_one_that_was_deleted(pauses: Pauses) -> None:
    """Otherwise an upgrade would wait, before the leader ends, for a replica that does not lead."""
    found = readiness(Api(None), pauses)
    await found.wait()
    assert POOL_WITHIN_S <= sum(pauses.lengths) < POOL_WITHIN_S + 3
    assert found.problems() == []


async def test_nor_for_one_that_nobody_makes(pauses: Pauses) -> None:
    await readiness(Api(None), pauses, makes_pool=False).wait()
    assert pauses.lengths == []


async def test_it_tells_when_the_webhook_is_not_reached_any_more(pauses: Pauses) -> None:
    """The operator stays ready: no replica would reach it. An API server that is away says nothing
    of the webhook."""
    there, away = AlreadyExists("default"), Unavailable("connection refused")
    others = Unavailable('failed calling webhook "validate.kyverno.svc": no endpoints')
    found = readiness(Api(NO_WAY, there, others, there, NO_WAY, away, there), pauses)
    pauses.most = 6
    with suppress(asyncio.CancelledError):
        await found.run()
    assert pauses.reachable == [0, 1, 1, 1, 0, 0, 1]
    assert found.problems() == []
    assert pauses.lengths[1:] == [60] * 6
