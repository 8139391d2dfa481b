"""Shadow pods go where the volumes of the pods that they are made for are, on an API server in
memory."""

from __future__ import annotations

from typing import Any

import pytest

from mizar_core.planning.node_fit import Requirement, Term
from mizar_kube.errors import Forbidden, Unavailable
from mizar_kube.kinds import PERSISTENT_VOLUME, POD, SHADOW_POD, VOLUME_CLAIM, Object, Ref
from mizar_operator.node_needs import needs_of
from mizar_operator.volume_nodes import (
    BOUND_BELIEVED_S,
    READS_MAX,
    UNBOUND_BELIEVED_S,
    UNREAD_BELIEVED_S,
    VolumeNodes,
    together,
)
from stateful.harness import Harness
from stateful.model import Model
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"
HOME = {"name": "home", "persistentVolumeClaim": {"claimName": "claim-home"}}
SCRATCH = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}


def claim(model: Model, name: str, volume: str = "") -> Object:
    spec = {"volumeName": volume} if volume else {}
    meta = {"name": name, "namespace": "team-a"}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return model.api.put({**kind, "metadata": meta, "spec": spec})


def volume(model: Model, name: str, *zones: str) -> None:
    lines = [{"key": "zone", "operator": "In", "values": list(zones)}]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": lines}]}}
    kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
    spec = {"nodeAffinity": terms} if zones else {}
    model.api.put({**kind, "metadata": {"name": name}, "spec": spec})


def zones(*values: str) -> Requirement:
    return Requirement("zone", "In", values)


@pytest.fixture
def model() -> Model:
    return small_model()


@pytest.fixture
def operator(model: Model) -> Harness:
    return Harness(model)


def wanted(model: Model) -> tuple[Term, ...]:
    """What the only shadow pod wants of its node."""
    (shadow,) = model.api.all(SHADOW_POD)
    pod = model.api.find(POD, shadow["metadata"]["name"], "team-a")
    assert pod is not None
    return needs_of(pod).terms


def test_a_shadow_pod_goes_where_the_pods_volumes_are(model: Model, operator: Harness) -> None:
    claim(model, "claim-home", "pv-home")
    volume(model, "pv-home", "west")
    claim(model, "one-scratch", "pv-scratch")
    volume(model, "pv-scratch", "west", "north")
    model.add_share("team-a", "one", GPU, 1, volumes=[HOME, SCRATCH, {"name": "x", "emptyDir": {}}])
    operator.round()
    assert wanted(model) == (Term((zones("west"), zones("west", "north"))),)


def test_a_volume_that_is_everywhere_and_one_to_come_want_no_node(
    model: Model, operator: Harness
) -> None:
    claim(model, "claim-home", "pv-home")
    volume(model, "pv-home")
    claim(model, "one-scratch")
    model.add_share("team-a", "one", GPU, 1, volumes=[HOME, SCRATCH])
    operator.round()
    assert wanted(model) == ()


def test_an_operator_that_may_not_read_volumes_plans_all_the_same(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(ref: Ref, **_: object) -> Object:
        raise Forbidden(f"no right to read {ref}")

    monkeypatch.setattr(model.api, "get", forbidden)
    model.add_share("team-a", "one", GPU, 1, volumes=[HOME])
    operator.round()
    assert wanted(model) == ()


class Reads:
    """The API server's answers, each with its time, which the test moves."""

    def __init__(self, **answers: Object | Exception) -> None:
        self.time = 1000.0
        self.answers = answers
        self.asked: list[str] = []
        self.volumes = VolumeNodes(self, lambda: self.time)  # type: ignore[arg-type]

    async def get(self, ref: Ref, **_: Any) -> Object:
        assert ref.kind in (VOLUME_CLAIM, PERSISTENT_VOLUME)
        self.asked.append(ref.name)
        answer = self.answers.get(ref.name, {"spec": {}})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def asks(self, *names: str) -> list[str]:
        self.asked = []
        await self.volumes.of({("team-a", name) for name in names})
        return sorted(self.asked)


async def test_what_is_read_is_believed_for_a_while() -> None:
    bound = {"spec": {"volumeName": "pv"}}
    reads = Reads(bound=bound, unread=Forbidden("no"))
    assert await reads.asks("bound", "free", "unread") == ["bound", "free", "pv", "unread"]
    for seconds, again in (
        (UNBOUND_BELIEVED_S, ["free"]),
        (BOUND_BELIEVED_S, ["bound", "free", "pv"]),
        (UNREAD_BELIEVED_S, ["bound", "free", "pv", "unread"]),
    ):
        reads.time = 1000.0 + seconds
        assert await reads.asks("bound", "free", "unread") == again


async def test_an_api_server_that_is_busy_makes_no_volume_forgotten() -> None:
    """Otherwise the pod gets a shadow pod in a zone where its volume is not."""
    lines = [{"key": "zone", "operator": "In", "values": ["west"]}]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": lines}]}}
    reads = Reads(home={"spec": {"volumeName": "pv"}}, pv={"spec": {"nodeAffinity": terms}})
    key = ("team-a", "home")
    known = await reads.volumes.of({key})
    assert known[key]
    reads.answers["home"] = Unavailable("busy", status=429)
    reads.time += BOUND_BELIEVED_S
    assert await reads.volumes.of({key}) == known
    reads.time += UNBOUND_BELIEVED_S
    assert await reads.asks("home") == ["home"]


async def test_a_claim_that_is_made_anew_is_read_anew() -> None:
    """As with a namespace that is deleted and made again: nobody asks for it in between."""
    reads = Reads()
    assert await reads.asks("home") == ["home"]
    assert await reads.asks() == []
    assert await reads.asks("home") == ["home"]


async def test_very_many_are_read_in_turns() -> None:
    reads = Reads(pv={"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{}]}}}})
    names = [f"claim-{number:03}" for number in range(READS_MAX + 2)]
    reads.answers |= {name: {"spec": {"volumeName": "pv"}} for name in names}
    assert len(await reads.asks(*names)) == 2 * READS_MAX
    assert len(await reads.asks(*names)) == 2 * 2
    reads.time += BOUND_BELIEVED_S
    assert len(await reads.asks(*names)) == 2 * READS_MAX
    assert len(await reads.volumes.of({("team-a", name) for name in names})) == len(names)


def test_a_pod_of_two_volumes_goes_where_both_are() -> None:
    a, b = ("team-a", "a"), ("team-a", "b")
    west, east = Term((zones("west"),)), Term((zones("east"),))
    assert together([a, b], {}) == ()
    assert together([a, b], {a: (west, east)}) == (west, east)
    both = Term((zones("east"), zones("west")))
    assert together([a, b], {a: (west, east), b: (west,)}) == (west, both)


def test_volumes_of_many_terms_each_do_not_hold_up_a_plan() -> None:
    """Sixteen volumes of three zones each have 43 million combinations."""
    claims = [("a", f"claim-{number}") for number in range(16)]
    terms = tuple(Term((zones(one),)) for one in ("east", "north", "west"))
    assert together(claims, dict.fromkeys(claims, terms)) == ()
