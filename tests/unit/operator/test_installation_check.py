"""What `helm test` says of an installation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import KubeError, NotFound, Unavailable
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, POD, RESOURCE_SLICE, Kind, Object
from mizar_operator import installation_check
from mizar_operator.installation_check import Found, Line, Settings, report
from unit.operator.slices import device, resource_slice

SETTINGS = Settings(namespace="infra", release="gpus", node_selector={"gpu": "yes"})
BY_CDI = "containers get their cards by CDI"


def pod(component: str, node: str = "n1", ready: bool = True, **conditions: str) -> Object:
    """`conditions`: the messages of those that are False, by type with _ for -."""
    said = [{"type": "Ready", "status": str(ready)}]
    if component == "nodeagent" and "card_access" not in conditions:
        said.append({"type": "mizar.share/card-access", "status": "True", "message": BY_CDI})
    for name, message in conditions.items():
        kind = f"mizar.share/{name.replace('_', '-')}"
        said.append({"type": kind, "status": "False", "message": message})
    return {
        "metadata": {"labels": {"app.kubernetes.io/component": component}},
        "spec": {"nodeName": node},
        "status": {"conditions": said},
    }


def node(name: str, resource: str = "nvidia.com/gpu", cards: int = 4, **labels: str) -> Object:
    status = {"capacity": {resource: str(cards), "cpu": "8"}}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def pool(name: str = "default", total: int = 4, message: str = "", **spec: str) -> Object:
    conditions = [{"type": "Any", "message": message}] if message else []
    status = {"cards": {"total": total, "held": 1}, "conditions": conditions}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


QUOTA: Object = {"metadata": {"namespace": "team-a", "name": "gpus"}}
PROGRAMS = (pod("operator"), pod("webhook"), pod("webhook"))


def found(**changed: Any) -> Found:
    """An installation that works, with some changes."""
    parts: dict[str, Any] = {
        "pods": [*PROGRAMS, pod("nodeagent")],
        "nodes": [node("n1", gpu="yes"), node("n2", cards=0)],
        "pools": [pool()],
        "quotas": [QUOTA],
    }
    return Found(**{**parts, **changed})


def problems(**changed: Any) -> list[str]:
    return [one.text for one in report(found(**changed), SETTINGS) if one.problem]


def test_an_installation_that_works_has_a_line_for_each_part() -> None:
    assert report(found(), SETTINGS) == [
        Line("the CRDs have all fields of this version"),
        Line("operator: 1 pod ready"),
        Line("webhook: 2 pods ready"),
        Line(f"1 node agent ready: {BY_CDI}"),
        Line("pool default: 4 cards, 1 of them held"),
        Line("1 namespace with a GPUQuota"),
    ]


def test_problems_come_last() -> None:
    lines = report(found(lacking=["GPUPool.spec.a"], pools=[]), SETTINGS)
    assert [one.problem for one in lines] == [False] * 4 + [True] * 2


def test_old_crds_are_named_with_the_command_that_replaces_them() -> None:
    (text,) = problems(lacking=["a", "b", "c", "d", "e"])
    assert "lack a, b, c and 2 more: " in text and "kubectl apply --server-side" in text


@pytest.mark.parametrize(
    ("pods", "count"),
    [([], "0 of 0 pods"), ([pod("webhook"), pod("webhook", ready=False)], "1 of 2 pods")],
)
def test_a_program_that_is_not_ready(pods: list[Object], count: str) -> None:
    (text,) = problems(pods=[pod("operator"), pod("nodeagent"), *pods])
    assert text == (
        f"webhook: {count} ready: kubectl --namespace infra describe pods"
        " --selector app.kubernetes.io/component=webhook"
    )


def test_a_node_with_cards_that_lacks_the_label_of_node_agents() -> None:
    (text,) = problems(nodes=[node("n1", gpu="yes"), node("n3", gpu="no")])
    assert text == "n3: cards but no node agent; missing labels: gpu=yes"


def test_a_node_with_the_label_and_without_an_agent() -> None:
    (text,) = problems(nodes=[node("n1", gpu="yes"), node("n3", gpu="yes")])
    assert text.startswith("n3: cards but no node agent: ")
    assert text.endswith("kubectl --namespace infra describe daemonsets")


def test_cards_of_any_pools_resource_need_an_agent() -> None:
    mig = "nvidia.com/mig-1g.5gb"
    nodes = [node("n1", gpu="yes"), node("n3", resource=mig)]
    assert not problems(nodes=nodes)
    assert problems(nodes=nodes, pools=[pool(physicalResource=mig)])


def test_an_agent_that_is_not_ready() -> None:
    (text,) = problems(pods=[*PROGRAMS, pod("nodeagent", ready=False)])
    assert text.startswith("n1: the node agent is not ready: ")
    assert "/api/v1/namespaces/infra/pods/POD:PORT/proxy/readyz" in text


@pytest.mark.parametrize("kind", ["card_access", "node_settings"])
def test_an_agent_whose_condition_says_what_is_wrong(kind: str) -> None:
    agent = pod("nodeagent", **{kind: "NRI is off in containerd"})
    assert problems(pods=[*PROGRAMS, agent]) == ["n1: NRI is off in containerd"]


def test_nodes_with_the_same_problem_are_one_line() -> None:
    names = [f"n{number:02}" for number in range(25)]
    agents = [pod("nodeagent", name, card_access="no CDI") for name in names]
    nodes = [node(name, gpu="yes") for name in names]
    (text,) = problems(pods=[*PROGRAMS, *agents], nodes=nodes)
    assert text == f"{', '.join(names[:20])} and 5 more: no CDI"


def test_without_any_node_it_says_what_to_look_for() -> None:
    (text,) = problems(pods=list(PROGRAMS), nodes=[node("n2", cards=0)])
    assert "device plugin" in text and "(gpu=yes)" in text


def test_a_pool_without_cards_has_its_own_reasons() -> None:
    assert problems(pools=[pool(total=0, message="no node offers it")]) == [
        "pool default has no card: no node offers it"
    ]
    assert problems(pools=[pool(total=0)]) == [
        "pool default has no card: kubectl describe gpupool default"
    ]


def test_no_quota_is_no_problem_but_is_said() -> None:
    assert not problems(quotas=[])
    assert report(found(quotas=[]), SETTINGS)[-1].text.startswith("no namespace has a GPUQuota")


class Api:
    """Answers as an API server with these objects."""

    def __init__(self, lists: dict[Kind, list[Object]]) -> None:
        self.lists = lists
        self.error: KubeError | None = None

    async def list(
        self, kind: Kind, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Listing:
        if self.error:
            raise self.error
        if kind not in self.lists:
            raise NotFound("the server could not find the requested resource")
        assert field_selector == ("spec.driver=gpu.nvidia.com" if kind == RESOURCE_SLICE else "")
        wanted = ("infra", "app.kubernetes.io/instance=gpus") if kind == POD else ("", "")
        assert (namespace, label_selector) == wanted
        return Listing(self.lists[kind], "1")

    async def request(self, *_: str) -> Object:
        raise NotFound("no schemas")

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    every = found()
    made = Api(
        {
            POD: list(every.pods),
            NODE: list(every.nodes),
            GPU_POOL: list(every.pools),
            GPU_QUOTA: list(every.quotas),
        }
    )

    async def connect(_: Any) -> Api:
        return made

    monkeypatch.setattr(KubeClient, "connect", connect)
    return made


ARGUMENTS = ["--namespace=infra", "--release=gpus", '--node-selector={"gpu":"yes"}']


def test_the_program_prints_its_findings(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    installation_check.main(ARGUMENTS)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6 and all(one.startswith("ok      ") for one in printed)


def test_the_program_fails_for_a_problem(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.lists[GPU_POOL] = []
    with pytest.raises(SystemExit, match="1 problem found"):
        installation_check.main(ARGUMENTS)
    assert capsys.readouterr().out.splitlines()[-1].startswith("PROBLEM there is no GPUPool: ")


def test_nodes_whose_cards_a_dra_driver_offers_need_an_agent(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the API server serves no ResourceSlices, there are none."""
    api.lists[RESOURCE_SLICE] = [resource_slice("n1", device(0)), resource_slice("n2")]
    installation_check.main(ARGUMENTS)
    api.lists[RESOURCE_SLICE].append(resource_slice("n2", device(0)))
    with pytest.raises(SystemExit, match="1 problem found"):
        installation_check.main(ARGUMENTS)
    assert "PROBLEM n2: cards but no node agent" in capsys.readouterr().out
    part = device(1, kind="mig", profile="1g.5gb")
    api.lists[RESOURCE_SLICE][-1] = resource_slice("n2", part)
    installation_check.main(ARGUMENTS)


def test_the_program_fails_without_an_api_server(api: Api) -> None:
    api.error = Unavailable("connection refused")
    with pytest.raises(SystemExit, match=re.escape("could not be checked: connection refused")):
        installation_check.main(ARGUMENTS)
