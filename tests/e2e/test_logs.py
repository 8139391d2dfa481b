"""What people find when they look for a pod in the logs of Mizar's three programs."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from e2e.watching import wait_held
from support.kube import Kube, condition
from support.logs import Line, lines
from support.objects import deployment, share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
MIZAR = "mizar-system"
PROGRAMS = "webhook", "operator", "nodeagent"


def grep(kube: Kube, program: str, word: str) -> list[Line]:
    """The lines of all pods of a program that contain the word, in order of time."""
    selector = f"--selector=app.kubernetes.io/component={program}"
    log = kube.run("logs", f"--namespace={MIZAR}", selector, "--tail=-1")
    found = lines("\n".join(line for line in log.splitlines() if word in line))
    return sorted(found, key=lambda line: str(line["timestamp"]))


def wait_logged(kube: Kube, program: str, word: str, event: str) -> list[Line]:
    """Wait for lines of that event with the word: a log may tell of it a little later."""
    return wait_for(
        f"{program} to log {event!r}",
        lambda: [line for line in grep(kube, program, word) if line["event"] == event],
    )


def test_one_grep_follows_a_share_pod_from_admission_to_running(kube: Kube, stage: "Stage") -> None:
    """Rewritten, waiting, placed, and given its limits: each in a line with the pod's name."""
    tenant, name = stage.tenant(HALF), f"followed-{stage.mark}"
    # Otherwise the operator may hear of the pod first, and say that it has no quota.
    wait_for(
        "the quota's status",
        lambda: condition(kube.get("gpuquota", "gpus", tenant) or {}, "Satisfied"),
    )
    kube.apply(share_pod(tenant, name))
    kube.wait_running(tenant, name)
    (held,) = wait_held(kube, tenant, name)
    for program, event in (
        ("webhook", "resource names rewritten"),
        ("operator", "share pod placed"),
        ("nodeagent", "limits written"),
    ):
        wait_logged(kube, program, name, event)
    found = {one: grep(kube, one, name) for one in PROGRAMS}

    (rewritten,) = (one for one in found["webhook"] if one["event"] == "resource names rewritten")
    assert rewritten["rewritten"] == {"mizar.share/gpu.2": f"{tenant}.mizar.share/gpu.2"}
    created, placed = (
        next(one for one in found["operator"] if one["event"] == event)
        for event in ("shadow pod created", "share pod placed")
    )
    assert held.startswith(f"{tenant}/{created['shadow']}-")
    assert created["pool"] == stage.pools[0]
    waits = next(one for one in found["operator"] if one["event"] == "event")
    assert (waits["pod"], waits["reason"]) == (name, "WaitingForShadow")
    written = next(one for one in found["nodeagent"] if one["event"] == "limits written")
    assert (written["call"], written["container"]) == ("prestart", "main")
    assert (written["device"], written["resource"]) == ([held], f"{tenant}.mizar.share/gpu.2")
    (allocated,) = (
        one for one in grep(kube, "nodeagent", written["slot"]) if one.get("call") == "allocate"
    )
    assert allocated["device"] == [held]

    told = [rewritten, created, placed, written]
    assert [one["namespace"] for one in told] == [tenant] * 4
    # The operator's lines come after its writes: the node may be faster.
    story = [rewritten, allocated, written]
    assert story == sorted(story, key=lambda line: str(line["timestamp"]))


def test_a_pod_that_has_no_name_yet_is_found_by_its_beginning(kube: Kube, stage: "Stage") -> None:
    """The API server names a Deployment's pods only after the webhook has seen them."""
    tenant = stage.tenant(HALF)
    kube.apply(deployment(tenant, "web"))
    (pod,) = wait_for("the pod", lambda: kube.all("pods", tenant, "app=web"))
    (line,) = wait_logged(kube, "webhook", tenant, "resource names rewritten")
    assert pod["metadata"]["name"].startswith(line["generate_name"])


def test_every_line_of_every_program_is_an_object(kube: Kube) -> None:
    for program in PROGRAMS:
        found = grep(kube, program, "")
        assert found
        assert all({"timestamp", "level", "logger", "event"} <= one.keys() for one in found)


def test_no_program_is_refused_a_right(kube: Kube) -> None:
    """Whatever the tests before this one had the programs do, the chart's roles allow it. An API
    server that has just started refuses everything until it has read all roles."""
    since = _api_server_started(kube) + timedelta(seconds=60)
    for program in PROGRAMS:
        refused = grep(kube, program, "is forbidden: User")
        assert [one for one in refused if _time(one) > since] == []


def _api_server_started(kube: Kube) -> datetime:
    page = kube.run("get", "--raw=/metrics")
    (line,) = (one for one in page.splitlines() if one.startswith("process_start_time_seconds "))
    return datetime.fromtimestamp(float(line.split()[1]), UTC)


def _time(line: Line) -> datetime:
    return datetime.fromisoformat(str(line["timestamp"]))
