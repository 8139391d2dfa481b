"""The webhook over HTTP, as the API server and the kubelet see it."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import jsonpatch
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from mizar_kube import probes
from mizar_kube.settings import read
from mizar_operator.webhook import cache, reviewer, server
from mizar_operator.webhook.cache import Cache
from mizar_operator.webhook.issue_certificates import Bundle, fresh
from mizar_operator.webhook.metrics import Metrics
from mizar_operator.webhook.mounted_certificate import CertificateFiles
from mizar_operator.webhook.quota_review import unchecked
from mizar_operator.webhook.reviewer import Reviewer
from mizar_operator.webhook.server import LARGE_AT_ONCE, LARGE_BYTES, review_app
from mizar_operator.webhook.serving_tls import ServingTLS
from mizar_operator.webhook.settings import Settings
from mizar_operator.webhook.spot_review import LENDS_NOTHING, SpotSettings
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.kube.fake_api import Answer, Asked, FakeApi, serving, status
from unit.webhook.builders import asking, container, pool_object, quota_object, spec
from unit.webhook.objects_api import Objects

POOLS = "/apis/mizar.share/v1alpha1/gpupools"
QUOTAS = "/apis/mizar.share/v1alpha1/namespaces/team-a/gpuquotas"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a read that takes long must not time out."""
    monkeypatch.setattr(cache, "READ_TIMEOUT_S", PATIENCE_S)


def request(obj: Json, resource: tuple[str, str] = ("", "pods"), old: Json | None = None) -> Json:
    """An AdmissionReview."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "UPDATE" if old else "CREATE",
            "namespace": "team-a",
            "resource": {"group": resource[0], "version": "v1", "resource": resource[1]},
            "object": obj,
            "oldObject": old,
        },
    }


class Webhook:
    """The reviewing side of the webhook with an API server behind it."""

    def __init__(self, objects: Objects, cache: Cache, http: TestClient[Any, Any]) -> None:
        self.objects, self.cache, self.http = objects, cache, http

    async def ask(self, path: str, review: Json) -> Json:
        answer = await self.http.post(path, json=review)
        assert answer.status == 200, await answer.text()
        return dict((await answer.json())["response"])


@asynccontextmanager
async def running(
    objects: Objects,
    synced: bool = True,
    spot: SpotSettings = LENDS_NOTHING,
    draining: Callable[[], bool] = lambda: False,
    *,
    gates: bool = False,
    weak: bool = False,
) -> AsyncIterator[Webhook]:
    async with serving(FakeApi(others=objects)) as client:
        cache = Cache(client)
        if synced:
            for informer in cache.informers:
                await informer._list()
        reviewer = Reviewer(cache, spot, gates=gates, strict_kills_root_only=weak)
        app = review_app(reviewer, Metrics(), draining)
        async with TestClient(TestServer(app)) as http:
            yield Webhook(objects, cache, http)


def cluster() -> Objects:
    objects = Objects()
    objects.put(f"{POOLS}/default", pool_object())
    return objects


def patch(response: Json) -> Any:
    return json.loads(base64.b64decode(response["patch"]))


async def test_a_pod_is_patched() -> None:
    async with running(cluster()) as webhook:
        response = await webhook.ask("/mutate", request({"spec": asking("mizar.share.gpu.2")}))
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u", True, "JSONPatch")
    base = "/spec/containers/0/resources"
    assert patch(response) == [
        {"op": "remove", "path": f"{base}/limits/mizar.share.gpu.2"},
        {"op": "remove", "path": f"{base}/requests/mizar.share.gpu.2"},
        {"op": "add", "path": f"{base}/limits/team-a.mizar.share~1gpu.2", "value": "1"},
        {"op": "add", "path": f"{base}/requests/team-a.mizar.share~1gpu.2", "value": "1"},
        {"op": "add", "path": "/metadata/labels", "value": {"mizar.share/share-pod": "true"}},
    ]


async def test_a_pod_keeps_its_own_labels() -> None:
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": asking("mizar.share/gpu.2")}
    async with running(cluster()) as webhook:
        response = await webhook.ask("/mutate", request(pod))
    after = jsonpatch.apply_patch(pod, patch(response))
    assert after["metadata"]["labels"] == {"app": "x", "mizar.share/share-pod": "true"}


@pytest.mark.parametrize("gates", [True, False])
async def test_a_pod_that_may_preempt_is_gated_where_the_installation_says_so(gates: bool) -> None:
    pod = {"metadata": {}, "spec": asking("mizar.share/gpu.2") | {"priority": 1}}
    async with running(cluster(), gates=gates) as webhook:
        response = await webhook.ask("/mutate", request(pod))
    after = jsonpatch.apply_patch(pod, patch(response))
    assert ("schedulingGates" in after["spec"]) is gates


async def test_an_update_of_a_pod_that_nobody_can_mend_passes() -> None:
    pod = {"spec": asking("team-b.mizar.share/gpu.2")}
    async with running(cluster()) as webhook:
        assert (await webhook.ask("/mutate", request(pod, old=pod)))["allowed"]


@pytest.mark.parametrize(
    ("resource", "wrap"),
    [
        (("apps", "deployments"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (("apps", "statefulsets"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (("apps", "daemonsets"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (("apps", "replicasets"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (("", "replicationcontrollers"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (("batch", "jobs"), lambda spec: {"spec": {"template": {"spec": spec}}}),
        (
            ("batch", "cronjobs"),
            lambda spec: {"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}},
        ),
        (("", "podtemplates"), lambda spec: {"template": {"spec": spec}}),
    ],
)
async def test_templates_are_patched_where_they_are(resource: Any, wrap: Any) -> None:
    async with running(cluster()) as webhook:
        before = wrap(asking("mizar.share.gpu.2"))
        response = await webhook.ask("/mutate", request(before, resource))
    assert jsonpatch.apply_patch(before, patch(response)) == wrap(asking("mizar.share/gpu.2"))


@pytest.mark.parametrize(("review", "status"), [(request({"spec": {}}), 200), ({}, 400)])
async def test_an_api_server_keeps_its_connection_until_the_webhook_drains(
    review: Json, status: int
) -> None:
    """Whatever the answer is: otherwise the API server would send the next review to a server that
    ends."""
    draining = False
    async with running(cluster(), draining=lambda: draining) as webhook:
        for draining in (False, True):
            answer = await webhook.http.post("/mutate", json=review)
            assert answer.status == status
            assert (answer.headers.get("Connection") == "close") is draining


async def test_refusals_reach_the_user() -> None:
    async with running(cluster()) as webhook:
        review = request({"spec": asking("team-b.mizar.share/gpu.2")})
        response = await webhook.ask("/mutate", review)
    assert (response["uid"], response["allowed"]) == ("u", False)
    assert response["status"]["code"] == 422
    assert "belongs to namespace 'team-b'" in response["status"]["message"]


async def test_warnings_reach_the_user() -> None:
    async with running(Objects()) as webhook:
        template = {"spec": {"template": {"spec": asking("mizar.share/gpu.2")}}}
        response = await webhook.ask("/mutate", request(template, ("apps", "deployments")))
    assert response["allowed"]
    assert "create one" in response["warnings"][0]


async def test_of_hundreds_of_containers_the_first_are_named() -> None:
    wrong = [container({"team-b.mizar.share/gpu.2": "1"}, name=f"c{at}") for at in range(900)]
    absent = [container({"mizar.share/gpu.2": "1"}, name=f"c{at}") for at in range(900)]
    async with running(cluster()) as webhook:
        response = await webhook.ask("/mutate", request({"spec": spec(*wrong)}))
    said = response["status"]["message"].split("; ")
    assert "container 'c19'" in said[19]
    assert said[20:] == ["and 880 more"]
    async with running(Objects()) as webhook:
        template = {"spec": {"template": {"spec": spec(*absent)}}}
        response = await webhook.ask("/mutate", request(template, ("apps", "deployments")))
    assert response["warnings"][-1] == "and 880 more"


@pytest.mark.parametrize("key", ["mizar.share/gpu-x{}", "a{}.mizar.share/gpu.2", "a{}/gpu.2"])
@pytest.mark.parametrize("updates", [False, True])
async def test_a_pod_of_a_hundred_thousand_resources_holds_up_no_other(
    key: str, updates: bool
) -> None:
    """API servers take 3 MiB, and any user who may create pods can send that again and again. For
    as long as one is reviewed, all others wait."""
    objects = cluster()
    for at in range(9):
        objects.put(f"{POOLS}/p{at}", pool_object(f"p{at}", resourcePrefix=f"p{at}.example.com"))
    many = spec(container(dict.fromkeys(map(key.format, range(50_000)), "1")))
    few = asking("mizar.share/gpu.2")
    new, old = (few, many) if updates else (many, None)
    async with running(objects) as webhook:
        review = json.dumps(request({"spec": new}, old=old and {"spec": old})).encode()
        began = process_time()
        answer = await webhook.http.post("/mutate", data=BytesIO(review))
        assert process_time() - began < 1
        response = (await answer.json())["response"]
    assert "limits and requests in its containers" in response["status"]["message"]
    assert "at most 2000" in response["status"]["message"]


async def test_kinds_without_pods_and_unknown_ones_pass() -> None:
    async with running(cluster()) as webhook:
        for path in ("/mutate", "/validate"):
            response = await webhook.ask(path, request({}, ("", "configmaps")))
            assert response == {"uid": "u", "allowed": True}


async def test_a_pod_made_right_after_its_pool_is_not_refused() -> None:
    async with running(Objects()) as webhook:
        webhook.objects.put(f"{POOLS}/default", pool_object())
        response = await webhook.ask("/mutate", request({"spec": asking("mizar.share/gpu.2")}))
        assert response["allowed"]


async def test_a_pod_of_a_pool_that_cannot_be_read_is_told_to_ask_an_administrator() -> None:
    objects = Objects()
    objects.put(f"{POOLS}/default", pool_object(isolation={"compute": "Fair"}))
    async with running(objects) as webhook:
        response = await webhook.ask("/mutate", request({"spec": asking("mizar.share/gpu.2")}))
    assert not response["allowed"]
    told = response["status"]["message"]
    assert "Mizar cannot read GPUPool 'default': ask an administrator" in told


SPOT_POD: Json = {
    "metadata": {"annotations": {"mizar.share/may-be-lost": "true"}},
    "spec": asking("mizar.spot/gpu"),
}


async def test_a_spot_pod_made_right_after_its_quota_is_not_refused() -> None:
    async with running(cluster(), spot=SpotSettings(enabled=True)) as webhook:
        refused = await webhook.ask("/mutate", request(SPOT_POD))
        assert "may not borrow cards" in refused["status"]["message"]
        webhook.objects.put("/apis/mizar.share/v1alpha1/gpuquotas/x", quota_object(spot={"max": 1}))
        response = await webhook.ask("/mutate", request(SPOT_POD))
    assert response["allowed"]
    after = jsonpatch.apply_patch(SPOT_POD, patch(response))
    assert after["spec"]["schedulingGates"] == [{"name": "mizar.share/spot"}]


async def test_the_quotas_of_a_namespace_add_up_and_those_of_others_do_not() -> None:
    objects = cluster()
    for name, namespace in (("x", "team-a"), ("y", "team-a"), ("z", "team-b")):
        quota = quota_object(namespace, name, spot={"max": 1})
        objects.put(f"/apis/mizar.share/v1alpha1/gpuquotas/{name}", quota)
    async with running(objects, spot=SpotSettings(enabled=True)) as webhook:
        for cards, allowed in (("2", True), ("3", False)):
            pod = SPOT_POD | {"spec": asking("mizar.spot/gpu", cards)}
            assert (await webhook.ask("/mutate", request(pod)))["allowed"] == allowed


async def test_whole_cards_of_any_pool_keep_off_spot_cards() -> None:
    objects = cluster()
    objects.put(f"{POOLS}/other", pool_object("other", physicalResource="example.com/card"))
    two = asking("mizar.spot/gpu")
    two["containers"][0]["resources"]["limits"]["example.com/card"] = "1"
    async with running(objects, spot=SpotSettings(enabled=True)) as webhook:
        response = await webhook.ask("/mutate", request(SPOT_POD | {"spec": two}))
    assert "asks for example.com/card" in response["status"]["message"]


@pytest.mark.parametrize("lends", [False, True])
async def test_a_pool_that_an_installation_does_not_lend_from_gets_a_warning(lends: bool) -> None:
    async with running(Objects(), spot=SpotSettings(enabled=lends)) as webhook:
        review = request(pool_object(spot={"enabled": True}), ("mizar.share", "gpupools"))
        response = await webhook.ask("/validate", review)
    assert response["allowed"]
    assert any("spot.enabled" in one for one in response.get("warnings", ())) != lends


STRICT = {"isolation": {"enforcement": "Strict"}}


@pytest.mark.parametrize("weak", [True, False])
@pytest.mark.parametrize(
    ("obj", "strict"),
    [
        (pool_object(**STRICT), True),
        (pool_object(defaultQuota={"profiles": [{"devices": 2, "max": 1}], **STRICT}), True),
        (pool_object(isolation={"compute": "Hard"}), False),
        (quota_object(**STRICT), True),
        (quota_object(isolation={"compute": "Hard"}), False),
    ],
)
async def test_a_strict_pool_or_quota_gets_a_warning_if_agents_may_kill_root_processes_only(
    obj: Json, strict: bool, weak: bool
) -> None:
    """Otherwise only the event at the first process that cannot be killed says so."""
    kind = {"GPUPool": "gpupools", "GPUQuota": "gpuquotas"}[obj["kind"]]
    async with running(cluster(), weak=weak) as webhook:
        response = await webhook.ask("/validate", request(obj, ("mizar.share", kind)))
    assert response["allowed"]
    told = any("nodeagent.mayKill" in one for one in response.get("warnings", ()))
    assert told == (strict and weak)


async def test_doubts_are_looked_into_once_for_many() -> None:
    async with running(Objects()) as webhook:
        asked_at = webhook.cache.now()
        await webhook.cache.refresh(asked_at)
        read = webhook.cache._read_at
        await webhook.cache.refresh(asked_at)
        assert webhook.cache._read_at == read
        await webhook.cache.refresh(webhook.cache.now())
        assert webhook.cache._read_at > read


async def test_before_it_knows_anything_the_failure_policy_decides() -> None:
    async with running(cluster(), synced=False) as webhook:
        answer = await webhook.http.post("/mutate", json=request({"spec": {}}))
        assert answer.status == 503


async def test_when_the_api_server_is_away_the_failure_policy_decides() -> None:
    async with running(cluster()) as webhook:
        webhook.objects.__class__ = Broken
        review = request(quota_object(), ("mizar.share", "gpuquotas"))
        answer = await webhook.http.post("/validate", json=review)
        assert answer.status == 503


class Broken(Objects):
    def __call__(self, asked: Asked) -> Answer:
        return Answer(status(503, ""), 503)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"request": {"uid": "u"}}', "[" * 100_000])
async def test_nonsense_is_a_bad_request(body: str) -> None:
    async with running(cluster()) as webhook:
        assert (await webhook.http.post("/mutate", data=body)).status == 400


async def test_a_quota_is_checked_against_its_pool_as_it_is_now() -> None:
    async with running(Objects()) as webhook:
        webhook.objects.put(f"{POOLS}/default", pool_object(profiles=[{"devices": 4, "cards": 1}]))
        review = request(quota_object(), ("mizar.share", "gpuquotas"))
        response = await webhook.ask("/validate", review)
        assert not response["allowed"]
        review = request(quota_object(pool="later"), ("mizar.share", "gpuquotas"))
        assert (await webhook.ask("/validate", review))["warnings"]


@pytest.mark.parametrize(("namespace", "allowed"), [("team-a", False), ("team-b", True)])
async def test_a_quota_is_checked_against_the_others_of_its_namespace(
    namespace: str, allowed: bool
) -> None:
    objects = cluster()
    path = f"/apis/mizar.share/v1alpha1/namespaces/{namespace}/gpuquotas/other"
    objects.put(path, quota_object(namespace, "other"))
    async with running(objects) as webhook:
        review = request(quota_object(), ("mizar.share", "gpuquotas"))
        assert (await webhook.ask("/validate", review))["allowed"] == allowed


async def test_a_pool_is_checked_against_its_quotas() -> None:
    objects = cluster()
    objects.put(
        "/apis/mizar.share/v1alpha1/gpuquotas/x", quota_object()
    )  # as a list of all namespaces has it
    async with running(objects) as webhook:
        new = pool_object(profiles=[{"devices": 4, "cards": 1}])
        review = request(new, ("mizar.share", "gpupools"), old=pool_object())
        response = await webhook.ask("/validate", review)
    assert "GPUQuota team-a/gpus would not fit" in response["status"]["message"]


@pytest.mark.parametrize(
    ("meta", "key", "value"),
    [
        ({"name": "bare"}, "pod", "bare"),
        ({"generateName": "web-5d8f-"}, "generate_name", "web-5d8f-"),
    ],
)
async def test_what_is_rewritten_is_logged_with_the_pod(
    meta: Json, key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running(cluster()) as webhook:
        pod = {"metadata": meta, "spec": asking("mizar.share.gpu.2")}
        await webhook.ask("/mutate", request(pod))
    (line,) = [one for one in logged(caplog) if one["event"] == "resource names rewritten"]
    assert (line["namespace"], line[key], line["operation"]) == ("team-a", value, "CREATE")
    assert line["rewritten"] == {"mizar.share.gpu.2": "team-a.mizar.share/gpu.2"}


async def test_what_is_refused_is_logged_with_the_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running(cluster()) as webhook:
        pod = {"metadata": {"name": "thief"}, "spec": asking("team-b.mizar.share/gpu.2")}
        await webhook.ask("/mutate", request(pod))
        template = {"metadata": {"name": "web"}, "spec": {"template": {"spec": asking("x.gpu.2")}}}
        await webhook.ask("/mutate", request(template, ("apps", "deployments")))
    refused, allowed = (one for one in logged(caplog) if "operation" in one)
    assert (refused["event"], refused["pod"]) == ("refused", "thief")
    assert "it belongs to namespace 'team-b'" in refused["message"]
    assert (allowed["kind"], allowed["name"]) == ("deployments", "web")


CLASSES = {
    "RuntimeClass": ("runtimeClassName", "/apis/node.k8s.io/v1/runtimeclasses"),
    "PriorityClass": ("priorityClassName", "/apis/scheduling.k8s.io/v1/priorityclasses"),
}


@pytest.mark.parametrize("kind", CLASSES)
async def test_a_pool_of_a_class_that_is_not_there_gets_a_warning(kind: str) -> None:
    field, path = CLASSES[kind]
    review = request(pool_object(**{field: "ours"}), ("mizar.share", "gpupools"))
    async with running(cluster()) as webhook:
        response = await webhook.ask("/validate", review)
        assert response["allowed"]
        assert response["warnings"] == [
            f"{kind} 'ours' doesn't exist yet: no shadow pod runs until it does"
        ]
        webhook.objects.put(f"{path}/ours", {"preemptionPolicy": "Never"})
        assert "warnings" not in await webhook.ask("/validate", review)


@pytest.mark.parametrize("found", [{}, {"preemptionPolicy": "PreemptLowerPriority"}])
async def test_a_pool_whose_shadow_pods_would_preempt_others_gets_a_warning(found: Json) -> None:
    field, path = CLASSES["PriorityClass"]
    objects = cluster()
    objects.put(f"{path}/ours", found)
    async with running(objects) as webhook:
        review = request(pool_object(**{field: "ours"}), ("mizar.share", "gpupools"))
        response = await webhook.ask("/validate", review)
        assert response["allowed"]
        (said,) = response["warnings"]
    assert said.startswith("PriorityClass 'ours' lets shadow pods evict running pods of lower")
    assert said.endswith("name one whose preemptionPolicy is Never")


async def test_a_pool_of_before_todays_rules_can_be_mended() -> None:
    old = pool_object(tolerations=[{"effect": "NoSchedule"}])
    objects = cluster()
    objects.put(f"{POOLS}/default", old)
    async with running(objects) as webhook:
        review = request(pool_object(), ("mizar.share", "gpupools"), old=old)
        assert (await webhook.ask("/validate", review))["allowed"]
        review = request(quota_object(), ("mizar.share", "gpuquotas"))
        assert (await webhook.ask("/validate", review))["allowed"]


def _of_a_newer_version(namespace: str, name: str) -> Json:
    return quota_object(namespace, name, isolation={"compute": "Fair"})


async def test_a_quota_that_cannot_be_read_blocks_nothing_else() -> None:
    """A newer version may have stored it. Its repair and all other quotas and pools go on; a
    user who changes these is told what was not checked."""
    old = _of_a_newer_version("team-a", "odd")
    objects = cluster()
    objects.put("/apis/mizar.share/v1alpha1/gpuquotas/x", old)
    objects.put(f"{QUOTAS}/odd", old)
    quotas, pools = ("mizar.share", "gpuquotas"), ("mizar.share", "gpupools")
    async with running(objects) as webhook:
        repair = request(quota_object("team-a", "odd"), quotas, old=old)
        assert await webhook.ask("/validate", repair) == {"uid": "u", "allowed": True}
        for review in (request(pool_object(), pools), request(quota_object(), quotas)):
            response = await webhook.ask("/validate", review)
            assert response["allowed"]
            (told,) = response["warnings"]
            assert "cannot read these GPUQuotas: team-a/odd; this change was not checked" in told


async def test_what_can_be_read_is_checked_beside_a_quota_that_cannot() -> None:
    objects = cluster()
    path = "/apis/mizar.share/v1alpha1/gpuquotas"
    objects.put(f"{path}/x", _of_a_newer_version("team-z", "odd"))
    objects.put(f"{path}/y", quota_object())
    async with running(objects) as webhook:
        new = pool_object(profiles=[{"devices": 4, "cards": 1}])
        review = request(new, ("mizar.share", "gpupools"), old=pool_object())
        response = await webhook.ask("/validate", review)
    assert "GPUQuota team-a/gpus would not fit" in response["status"]["message"]


def test_a_warning_names_a_few_quotas_that_cannot_be_read() -> None:
    names = [("team-a", f"q{number}") for number in range(5)]
    assert unchecked([]) == []
    assert "team-a/q0, team-a/q1, team-a/q2 and 2 more; this" in unchecked(names)[0]


async def test_numbers_without_quotes_are_refused_with_a_sentence() -> None:
    async with running(cluster(), synced=False) as webhook:
        for scaling, allowed in ((1.5, False), ("1.5", True), (2, True)):
            review = request(pool_object(memoryScaling=scaling), ("mizar.share", "gpupools"))
            response = await webhook.ask("/mutate", review)
            assert (response["uid"], response["allowed"]) == ("u", allowed)


async def test_metrics_count_reviews() -> None:
    objects, metrics = cluster(), Metrics()
    async with serving(FakeApi(others=objects)) as client:
        cache = Cache(client)
        for informer in cache.informers:
            await informer._list()
        async with TestClient(
            TestServer(review_app(Reviewer(cache), metrics, lambda: False))
        ) as http:
            for key in ("mizar.share.gpu.2", "team-b.mizar.share/gpu.2", "cpu"):
                await http.post("/mutate", json=request({"spec": asking(key)}))
    for outcome in ("patched", "refused", "allowed"):
        labels = {"resource": "pods", "operation": "CREATE", "outcome": outcome}
        assert metrics.registry.get_sample_value("mizar_admission_reviews_total", labels) == 1


async def test_metrics_tell_apart_what_is_reviewed_and_nothing_else() -> None:
    metrics = Metrics()
    async with TestClient(TestServer(review_app(Counting(), metrics, lambda: False))) as http:
        for resource in ("x", "y", ["z"]):
            review = request({}, ("", "pods"))
            review["request"] |= {"operation": resource, "resource": {"resource": resource}}
            assert (await http.post("/mutate", json=review)).status == 200
    labels = {"resource": "other", "operation": "other", "outcome": "allowed"}
    assert metrics.registry.get_sample_value("mizar_admission_reviews_total", labels) == 3


class Counting(Reviewer):
    """Counts the reviews that go on at the same time; those of pods called `large` go on until
    `going` is set."""

    def __init__(self) -> None:
        self.now, self.most, self.going = 0, 0, asyncio.Event()

    async def mutate(self, request: Json) -> Json:
        if request["object"].get("metadata"):
            self.now += 1
            self.most = max(self.most, self.now)
            await self.going.wait()
            self.now -= 1
        return reviewer.allowed(request["uid"])


async def test_large_reviews_take_turns_and_hold_up_no_others() -> None:
    counting = Counting()
    large = request({"metadata": {"name": "large", "annotations": {"x": "y" * LARGE_BYTES}}})
    app = review_app(counting, Metrics(), lambda: False)
    async with TestClient(TestServer(app)) as http, asyncio.TaskGroup() as group:
        waiting = [group.create_task(http.post("/mutate", json=large)) for _ in range(8)]
        await until(lambda: counting.now == LARGE_AT_ONCE)
        assert (await http.post("/mutate", json=request({}))).status == 200
        assert not any(one.done() for one in waiting)
        counting.going.set()
        assert {(await one).status for one in waiting} == {200}
    assert counting.most == LARGE_AT_ONCE


async def test_what_no_api_server_sends_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REVIEW_BYTES", 1000)
    monkeypatch.setattr(server, "READ_S", 0.1)

    async def for_ever() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(PATIENCE_S)

    async with running(cluster()) as webhook:
        post = webhook.http.post
        assert (await post("/mutate", data=b" " * 1001)).status == 413
        assert (await post("/mutate", data=for_ever())).status == 408


NAME = "localhost"


async def test_the_certificate_changes_while_it_serves(tmp_path: Path) -> None:
    tls, first, second = ServingTLS(), *(fresh(NAME, datetime.now(UTC)) for _ in range(2))
    app = probes.application(probes.registry("test"), list, list)
    folder = CertificateFiles(tmp_path, tls)
    folder.look()
    assert folder.problem()
    write(tmp_path, first)
    folder.look()
    assert folder.problem() is None
    server = TestServer(app, scheme="https", host="localhost")
    await server.start_server(ssl=tls.context)
    assert await reaches(server, first)
    write(tmp_path, second)
    folder.look()
    assert await reaches(server, second)
    assert not await reaches(server, first)
    await server.close()


async def test_a_key_that_does_not_fit_does_not_end_what_is_served(tmp_path: Path) -> None:
    tls, good, other = ServingTLS(), *(fresh(NAME, datetime.now(UTC)) for _ in range(2))
    app = probes.application(probes.registry("test"), list, list)
    folder = CertificateFiles(tmp_path, tls)
    server = TestServer(app, scheme="https", host="localhost")
    write(tmp_path, good)
    folder.look()
    await server.start_server(ssl=tls.context)
    write(tmp_path, other)
    (tmp_path / "tls.key").write_bytes(good.key_pem)
    folder.look()
    assert await reaches(server, good), "until the files fit"
    write(tmp_path, good)
    folder.look()
    assert await reaches(server, good), "the files are as they were"
    write(tmp_path, other)
    folder.look()
    assert await reaches(server, other)
    await server.close()


def write(folder: Path, bundle: Bundle) -> None:
    (folder / "tls.crt").write_bytes(bundle.certificate_pem)
    (folder / "tls.key").write_bytes(bundle.key_pem)


async def reaches(server: TestServer, trusted: Bundle) -> bool:
    context = ssl.create_default_context(cadata=trusted.ca_pem.decode())
    async with ClientSession() as session:
        try:
            async with session.get(server.make_url("/healthz"), ssl=context) as answer:
                return answer.status == 200
        except OSError:
            return False


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "ns")
    settings = read(Settings, ["--service=w", "--drain-seconds=1", "--probe-port=1"])
    assert settings.dns_name == "w.ns.svc"
    assert (settings.port, settings.metrics_port, settings.certificate_dir) == (9443, 1, None)
