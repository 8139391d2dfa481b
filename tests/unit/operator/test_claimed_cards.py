"""Cards that pods hold by ResourceClaims of their own are not free."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mizar_core.names import DRA_RESOURCE, PHYSICAL_RESOURCE
from mizar_core.planning.snapshot import CardsOnNode
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.kinds import NODE, POD, RESOURCE_CLAIM, SHADOW_POD, Ref
from mizar_operator.claimed_cards import KNOWN_MOST, ClaimedCards, claims_of
from mizar_operator.gather import TAKEN_FOR_S, _cards_held
from stateful.harness import Harness
from stateful.model import Model
from support.logs import logged
from unit.operator.slices import Object, device, resource_claim, resource_slice
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


class Claims:
    """An API server that has these claims."""

    def __init__(self, *claims: Object) -> None:
        self.claims = {
            (one["metadata"]["namespace"], one["metadata"]["name"]): one for one in claims
        }
        self.read: list[str] = []

    async def get(self, ref: Ref, *, cached: bool = False) -> Object:
        assert ref.kind == RESOURCE_CLAIM and cached
        self.read.append(ref.name)
        if (str(ref.namespace), ref.name) not in self.claims:
            raise NotFound("no such claim")
        return self.claims[str(ref.namespace), ref.name]


def _claimed(api: Claims) -> ClaimedCards:
    return ClaimedCards(cast(KubeClient, api))


async def test_a_claims_devices_are_read_once_it_has_some() -> None:
    api = Claims(resource_claim("c", "a", "gpu-0", "gpu-1"), resource_claim("new", "a"))
    claimed = _claimed(api)
    for _ in range(2):
        assert await claimed.of(("a", "c", "u")) == {("n1", "gpu-0"), ("n1", "gpu-1")}
        assert await claimed.of(("a", "new", "u")) == frozenset()
        assert await claimed.of(("b", "c", "u")) == frozenset()
    assert api.read == ["c", "new", "c", "new", "c"]


async def test_devices_of_other_drivers_and_of_monitors_are_no_cards() -> None:
    api = Claims(
        resource_claim("nic", "a", "nic-0", driver="nic.example.com"),
        resource_claim("watch", "a", "gpu-0", adminAccess=True),
    )
    for name in ("nic", "watch"):
        assert await _claimed(api).of(("a", name, "u")) == frozenset()


async def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mizar_operator.claimed_cards.KNOWN_MOST", 2)
    assert KNOWN_MOST > 2
    names = ("c", "d", "e")
    claimed = _claimed(Claims(*(resource_claim(one, "a", "gpu-0") for one in names)))
    for one in names:
        await claimed.of(("a", one, "u"))
    assert len(claimed._known) == 1


def test_the_claims_of_a_pod() -> None:
    wanted = [
        {"name": "named", "resourceClaimName": "c"},
        {"name": "made", "resourceClaimTemplateName": "t"},
        {"name": "not-yet", "resourceClaimTemplateName": "t"},
        {"name": "optional", "resourceClaimTemplateName": "t"},
    ]
    made = [{"name": "made", "resourceClaimName": "made-x"}, {"name": "optional"}]
    pod: Object = {
        "metadata": {"namespace": "a", "uid": "u"},
        "spec": {"resourceClaims": wanted},
        "status": {
            "resourceClaimStatuses": made,
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended-resources-x"},
        },
    }
    assert list(claims_of(pod)) == [("a", "c", "u"), ("a", "made-x", "u")]
    pod["spec"] = {}
    assert list(claims_of(pod)) == []


def test_a_card_can_be_requested_by_its_device_class() -> None:
    """Kubernetes gives every DeviceClass a resource of its own name."""
    limits = {DRA_RESOURCE: "2", PHYSICAL_RESOURCE: "1", "nic.example.com/port": "1"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    pod: Object = {"metadata": {}, "spec": {"containers": containers}, "status": {}}
    assert _cards_held(pod, ()) == {PHYSICAL_RESOURCE: 3, "nic.example.com/port": 1}
    assert DRA_RESOURCE == "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


def _with_claim(model: Model, name: str, claim: str, phase: str = "Running") -> None:
    model.add_plain("team-b", name)
    pod = model.api.find(POD, name, "team-b")
    assert pod is not None
    pod["spec"] |= {"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimName": claim}]}
    pod["status"]["phase"] = phase
    model.api.touch(pod)


def _waits_by_dra(model: Model, cards: int) -> None:
    model.add_whole("team-z", "wide", cards)
    pod = model.api.find(POD, "wide", "team-z")
    assert pod is not None
    message = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable"
    why: dict[str, Any] = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"]["conditions"] = [why | {"message": message}]
    model.api.touch(pod)


@pytest.mark.parametrize(
    ("cards", "drained"), [(2, True), (3, False)], ids=["one is free", "too few are free"]
)
def test_cards_of_claims_are_not_free_for_who_needs_several(cards: int, drained: bool) -> None:
    """Of four cards a shadow pod has one, and pods with claims of their own two."""
    model = small_model()
    operator = Harness(model)
    model.add_share("team-a", "p", GPU, 2)
    for _ in range(6):
        operator.round()
    share = model.api.find(POD, "p", "team-a")
    assert share is not None
    model.api.start_delete(share)
    operator.round()
    node = model.api.find(NODE, "n1")
    assert node is not None
    for figure in ("capacity", "allocatable"):
        del node["status"][figure][PHYSICAL_RESOURCE]
    model.api.touch(node)
    part = device(9, kind="mig", profile="1g.5gb")
    model.api.put(resource_slice("n1", *map(device, range(4)), part))
    model.add_class()
    model.api.put(resource_claim("c", "team-b", "gpu-0"))
    model.api.put(resource_claim("two", "team-b", "gpu-0", "gpu-1", part["name"], "gpu-8"))
    model.api.put(resource_claim("done", "team-b", "gpu-2"))
    _with_claim(model, "one", "c")
    _with_claim(model, "both", "two")
    _with_claim(model, "ended", "done", "Succeeded")
    _waits_by_dra(model, cards)
    model.tick(TAKEN_FOR_S)
    operator.catch_up()
    snapshot = operator.snapshot()
    assert snapshot.taken == {(PHYSICAL_RESOURCE, "n1"): 2}
    assert [one.cards[PHYSICAL_RESOURCE].total for one in snapshot.nodes] == [4]
    assert snapshot.nodes[0].cards[PHYSICAL_RESOURCE] == CardsOnNode(
        4, 4, "NVIDIA-A100-SXM4-40GB", 40960
    )
    operator.reconcile()
    (shadow,) = model.api.all(SHADOW_POD)
    pod = model.api.find(POD, shadow["metadata"]["name"], "team-a")
    assert pod is not None
    assert ("mizar.share/drain" in (pod["metadata"].get("annotations") or {})) is drained


def test_no_shadow_pod_makes_room_where_no_device_class_offers_cards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The class has been deleted, and a pod waits for several cards."""
    model = small_model()
    operator = Harness(model)
    model.add_share("team-a", "p", GPU, 2)
    for _ in range(6):
        operator.round()
    share = model.api.find(POD, "p", "team-a")
    assert share is not None
    model.api.start_delete(share)
    operator.round()
    node = model.api.find(NODE, "n1")
    assert node is not None
    for figure in ("capacity", "allocatable"):
        del node["status"][figure][PHYSICAL_RESOURCE]
    model.api.touch(node)
    model.api.put(resource_slice("n1", *map(device, range(4))))
    _waits_by_dra(model, 2)
    model.tick(TAKEN_FOR_S)
    operator.catch_up()
    operator.reconcile()
    assert operator.snapshot().taken == {(PHYSICAL_RESOURCE, "n1"): 0}
    assert not [one for one in logged(caplog) if one["level"] == "error"]
    (shadow,) = model.api.all(SHADOW_POD)
    pod = model.api.find(POD, shadow["metadata"]["name"], "team-a")
    assert pod is not None
    assert "mizar.share/drain" not in (pod["metadata"].get("annotations") or {})
