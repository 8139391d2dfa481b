"""Static pods that run without the devices that they request are told so, and no others."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from mizar_nodeagent.pods import Pod, trim
from mizar_nodeagent.static_pods import SURE_S, StaticPods
from unit.nodeagent.makers import RESOURCE, device, share, share_claim, share_object, snapshot

STATIC = share("static", static_uid="ab", static_needs=(RESOURCE,))
ANOTHER = share_claim(device(0), pod="another")
OWN = share_claim(device(1), pod="static")


def told(*rounds: tuple[float, Iterable[Pod], Iterable[Any]]) -> list[list[str]]:
    """The pods that are told after each round: the time, the node's pods and the claims."""
    static = StaticPods()
    found = [list(static.events(snapshot(now, pods, claims))) for now, pods, claims in rounds]
    for one in (event for some in found for event in some):
        assert one.warning and one.reason == "StartedWithoutDevice" and RESOURCE in one.message
    return [[one.about[1] for one in some] for some in found]


def test_it_is_told_once_the_kubelet_has_named_no_device_of_it_twice() -> None:
    lacks = ([STATIC], [ANOTHER])
    rounds = [(1.0, *lacks), (2.0, *lacks), (1.0 + SURE_S, *lacks), (9.0 + SURE_S, *lacks)]
    assert told(*rounds) == [[], [], ["static"], []]


def test_the_first_answer_may_be_from_before_it_was_admitted() -> None:
    assert told((1.0, [STATIC], []), (1.0 + SURE_S, [STATIC], [OWN])) == [[], []]


def test_the_time_begins_anew_when_it_had_a_device_between() -> None:
    without, having = ([STATIC], []), ([STATIC], [OWN])
    assert told((1.0, *without), (3.0, *having), (2.0 + SURE_S, *without)) == [[], [], []]


@pytest.mark.parametrize(
    "pod",
    [
        share("static"),
        replace(STATIC, ended=True),
        replace(STATIC, admitted=False),
        replace(STATIC, static_needs=()),
    ],
    ids=["not static", "ended", "not admitted", "without a request"],
)
def test_others_are_not_told(pod: Pod) -> None:
    """A pod that is not static has been scheduled, and has a device unless the kubelet has
    forgotten that."""
    assert told((1.0, [pod], []), (2.0 + SURE_S, [pod], [])) == [[], []]


def test_another_of_its_name_is_told_too() -> None:
    next_one = replace(STATIC, uid="uid-next")
    rounds = [(at, [one], []) for one, at in ((STATIC, 1.0), (STATIC, 9.0), (next_one, 10.0))]
    assert told(*rounds, (20.0, [next_one], [])) == [[], ["static"], [], ["static"]]


@pytest.mark.parametrize("static", [True, False])
def test_an_init_containers_device_may_be_anybodys_afterwards(static: bool) -> None:
    body = share_object("static")
    if static:
        notes = {f"kubernetes.io/config.{one}": "ab" for one in ("hash", "mirror")}
        body["metadata"]["annotations"] = notes
    limits = {"limits": {"team-a.mizar.share/gpu.4": "1"}}
    body["spec"]["initContainers"] = [{"name": "prepare", "resources": limits}]
    pod = trim(body)
    assert pod is not None and len(pod.requests) == 2
    assert pod.static_needs == ((RESOURCE,) if static else ())
