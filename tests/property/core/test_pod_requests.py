"""A pod's requests, against a simulation of its containers: the most that it needs at any
moment."""

from collections import Counter
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.pod_requests import device_requests, devices_requested
from support.effort import effort

RESOURCES = ("a.mizar.share/gpu.2", "b.mizar.share/gpu.4")
Object = dict[str, Any]

counts = st.sampled_from([1, 2, 3, 1000])
maps = st.dictionaries(
    st.sampled_from([*RESOURCES, "cpu", "nvidia.com/gpu", "a.mizar.share.gpu.2"]), counts
)


@st.composite
def containers(draw: st.DrawFn, restart: st.SearchStrategy[str | None]) -> Object:
    """A container after the API server's defaults: what is limited is requested."""
    asked = {
        key: "1k" if count == 1000 else draw(st.sampled_from([str(count), count]))
        for key, count in draw(maps).items()
    }
    policy = draw(restart)
    return {
        "name": draw(st.sampled_from("abc")),
        "resources": {"limits": dict(asked), "requests": dict(asked)},
        **({"restartPolicy": policy} if policy else {}),
    }


specs = st.fixed_dictionaries(
    {"containers": st.lists(containers(st.none()), max_size=3)},
    optional={
        "initContainers": st.lists(
            containers(st.sampled_from([None, None, "Always", "Never"])), max_size=4
        )
    },
)


def held(container: Object) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, amount in container["resources"]["limits"].items():
        if key in RESOURCES:
            found[key] = 1000 if amount == "1k" else int(amount)
    return found


def moments(spec: Object) -> list[list[Object]]:
    """Which containers run together, moment by moment: init containers one after another beside
    the sidecars that have started, then all of the others beside all sidecars."""
    sidecars: list[Object] = []
    found = []
    for container in spec.get("initContainers", []):
        found.append([*sidecars, container])
        if container.get("restartPolicy") == "Always":
            sidecars.append(container)
    return [*found, [*sidecars, *spec["containers"]]]


@effort(100)
@given(specs)
def test_devices_are_those_of_the_neediest_moment(spec: Object) -> None:
    needs = [sum(map(held, moment), Counter[str]()) for moment in moments(spec)]
    most = {key: max(need[key] for need in needs) for key in RESOURCES}
    assert devices_requested(spec) == {key: count for key, count in most.items() if count}


@effort(100)
@given(specs)
def test_limits_alone_count_like_limits_and_requests(spec: Object) -> None:
    before = devices_requested(spec)
    for container in chain(spec.get("initContainers", []), spec["containers"]):
        del container["resources"]["requests"]
    assert devices_requested(spec) == before


@effort(100)
@given(specs)
def test_whoever_asks_for_devices_has_an_entry_for_them(spec: Object) -> None:
    """The webhook reviews the same requests that operator and node agent count."""
    assert set(devices_requested(spec)) == {
        one.key for one in device_requests(spec) if one.parsed.form == "slashed"
    }
