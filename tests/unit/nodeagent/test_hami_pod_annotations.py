"""What each container has, in the form that HAMi's dashboards read from pods."""

from typing import Any

import pytest

from mizar_core.models import Isolation
from mizar_kube.errors import Conflict, NotFound, Unavailable
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.hami_pod_annotations import HamiPodAnnotations, allocated
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.pods import Pod, trim
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    card,
    card_claim,
    carve,
    device,
    shadow,
    share,
    share_claim,
    share_object,
    snapshot,
)

NODE, DEVICES = "hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"
OTHER = ("team-a", "shadow-2-bbbbb")
HARD = carve(isolation=Isolation(compute="Hard"))
ONE = f"{CARD},NVIDIA,8192,50:"


def state(*claims: Claim, pod: Pod | None = None, how: Any = HARD) -> AgentState:
    """Two shadow pods, a card each, and a share pod that holds devices of them."""
    made = AgentState()
    pods = [
        shadow(carve=how),
        shadow(OTHER[1], carve=carve()),
        pod or share(containers=("main",)),
    ]
    cards = [card_claim(), card_claim(OTHER[1], card(2).uuid)]
    made.replan(snapshot(1, pods, cards))
    made.replan(snapshot(2, pods, [*cards, *claims]))
    return made


def held(container: str, *ids: str) -> Claim:
    return Claim("team-a", "share", container, RESOURCE, frozenset(ids))


def test_as_hami_writes_it() -> None:
    assert allocated(state(held("main", device(0)))) == {("team-a", "share"): f"{ONE};"}


def test_compute_that_is_not_limited_is_0() -> None:
    found = allocated(state(held("main", device(0)), how=carve()))
    assert found == {("team-a", "share"): f"{CARD},NVIDIA,8192,0:;"}


def test_devices_of_one_card_are_one_and_each_card_has_its_own() -> None:
    found = allocated(state(held("main", device(0), device(1), device(0, OTHER))))
    whole = f"{CARD},NVIDIA,16384,100:"
    assert found == {("team-a", "share"): f"{whole}{card(2).uuid},NVIDIA,8192,0:;"}


def test_each_container_has_its_place() -> None:
    """Init containers come first, and a container without devices has an empty place."""
    pod = share(containers=("init", "plain", "main"))
    found = allocated(state(held("main", device(0)), held("init", device(1)), pod=pod))
    assert found == {("team-a", "share"): f"{ONE};;{ONE};"}


def test_containers_are_in_their_order() -> None:
    made = share_object()
    made["spec"]["containers"].append({"name": "sidecar"})
    made["spec"]["initContainers"] = [{"name": "init"}]
    made["metadata"]["annotations"] = {DEVICES: "x"}
    pod = trim(made)
    assert pod is not None
    assert (pod.containers, pod.hami_devices) == (("init", "main", "sidecar"), "x")


def test_what_is_not_known_yet_is_not_told() -> None:
    for claim in (
        held("main", device(0), "team-a/shadow-2-gone-0"),
        held("main", "nonsense"),
        held("unheard-of", device(0)),
        share_claim(device(0), pod="unheard-of"),
        card_claim("share", card(3).uuid),
    ):
        assert allocated(state(claim)) == {}


class Api:
    """Remembers what was written to pods."""

    def __init__(self) -> None:
        self.written: list[tuple[str | None, str, dict[str, Any]]] = []
        self.error: Exception | None = None

    async def patch_merge(self, ref: Any, body: Any, subresource: str) -> None:
        assert subresource == "status" and body["metadata"].keys() == {"uid", "annotations"}
        if self.error:
            raise self.error
        self.written.append((ref.namespace, ref.name, body["metadata"]))


class TestWriter:
    async def test_writes_what_differs(self) -> None:
        api = Api()
        made = state(held("main", device(0)))
        await HamiPodAnnotations(api, "n", made).write()  # type: ignore[arg-type]
        notes = {NODE: "n", DEVICES: f"{ONE};"}
        assert api.written == [("team-a", "share", {"uid": "uid-share", "annotations": notes})]

    async def test_leaves_what_is_right(self) -> None:
        api = Api()
        pod = share(containers=("main",), hami_devices=f"{ONE};")
        made = state(held("main", device(0)), pod=pod)
        await HamiPodAnnotations(api, "n", made).write()  # type: ignore[arg-type]
        assert api.written == []

    @pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another"), Unavailable("away")])
    async def test_what_could_not_be_written_is_written_later(self, error: Exception) -> None:
        api = Api()
        writer = HamiPodAnnotations(api, "n", state(held("main", device(0))))  # type: ignore[arg-type]
        api.error = error
        await writer.write()
        api.error = None
        await writer.write()
        assert len(api.written) == 1
