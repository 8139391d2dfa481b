"""Cards of sleeping owners are lent to spot pods, and come back when the owner wakes."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e import component_logs
from e2e.test_compute import BUSY, wait_percent
from e2e.test_loss import busy_part
from e2e.watching import card_of, cards_seen_inside, rare, wait_event, wait_held
from mizar_nodeagent.card_health import REPAIRED
from simgpu.machine import Machine
from support import objects
from support.kube import Kube, Object, condition, is_ready
from support.objects import share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
LENDS = {"enabled": True, "idleAfterSeconds": 2}
IDLE_S = 4
"""Idle time of a card that is taken back twice. Without a rest, it could be lent again little more
than this time after its owner has woken for a moment."""
HALF = {"devices": 2, "min": 0, "max": 1}
WORK = ["cuda-sample", "busy", "--seconds", "4"]
TAKEN_MIB, NEEDED_MIB = 12 * 1024, 5 * 1024
"""MiB that a borrower takes and that its owner needs: a card does not have both."""
RESERVE_MIB, LEFT_MIB = 4 * 1024, 1024
"""The reserve of a test, and what a borrower that takes all may leave of the rest."""
TAKES_ALL = """
mib=16384
while ! cuda-sample alloc $mib; do mib=$((mib - 256)); done
exec cuda-sample hold $((mib - 256))
"""
SAVES = """
trap 'sleep 3; echo saved > /dev/termination-log; exit 0' %s
cuda-sample busy &
while :; do sleep 0.2; done
"""
"""A program that takes three seconds to save its work when it gets this signal."""
KEPT = "mizar.test/kept"


def annotated(pod: Object, **annotations: str) -> Object:
    """The pod with these annotations of Mizar's."""
    pod["metadata"]["annotations"] = {
        f"mizar.share/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return pod


def borrower(tenant: str, name: str, **spec: object) -> Object:
    """A spot pod that works all the time and that may be lost."""
    pod = share_pod(tenant, name, "mizar.spot/gpu", 1, BUSY, **spec)
    return annotated(pod, may_be_lost="true")


def start_borrower(kube: Kube, tenant: str, name: str) -> None:
    """Make a borrower and wait until it runs.

    A card may be withdrawn between a pod's scheduling and its start. The kubelet then refuses the
    pod for good, and its controller makes another; here, this is done once in a run, and its
    summary tells of it with what Mizar logged.
    """
    began = time.time()
    kube.apply(borrower(tenant, name))
    started = wait_for(
        f"borrower {tenant}/{name} to run or to be refused",
        lambda: _started(kube.get("pod", name, tenant)),
        180,
        explain=lambda: kube.describe(tenant, name),
    )
    if started == "Refused":
        assert not rare, f"{tenant}/{name} is the second borrower that was refused"
        logged = component_logs.recent(cast(Cluster, kube.cluster), began)
        rare.append(f"{kube.describe(tenant, name)}\n{logged}")
        kube.delete("pod", name, tenant)
        kube.apply(borrower(tenant, name))
        kube.wait_running(tenant, name)


def _started(pod: Object | None) -> str | None:
    if pod is not None and pod["status"].get("reason") == "UnexpectedAdmissionError":
        return "Refused"
    return "Running" if is_ready(pod) else None


def lender(kube: Kube, stage: "Stage", name: str = "owner", pool: str = "") -> str:
    """A tenant with a share pod that agreed to lend its card and sleeps."""
    tenant = stage.tenant(HALF, pool=pool or stage.pool(spot=LENDS))
    start_owner(kube, annotated(share_pod(tenant, name), low_power="true"))
    return tenant


def start_owner(kube: Kube, pod: Object) -> None:
    """Make a share pod, and wait until it sleeps."""
    tenant, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    kube.apply(pod)
    kube.wait_running(tenant, name)
    # Until the pod has its memory it is about to work, whatever the clock says on a slow machine.
    kube.wait_holding(tenant, name)
    wait_held(kube, tenant, name)


def borrowing(kube: Kube, stage: "Stage", cards: int = 1) -> str:
    """A tenant that may borrow that many cards."""
    return stage.tenant(pool=stage.pool(), spot={"max": cards})


def node_of(kube: Kube, cluster: Cluster, tenant: str, pod: str) -> Node:
    """The node on which the pod runs."""
    name = (kube.get("pod", pod, tenant) or {})["spec"]["nodeName"]
    (node,) = (one for one in cluster.nodes if one.name == name)
    return node


def reason_of_eviction(kube: Kube, tenant: str, pod: str) -> str:
    """Why the pod is evicted. The pod may be gone; its events are not. The program that writes them
    may just have been started again, or may be waiting for the API server."""
    return wait_event(kube, tenant, pod, "SpotEvicted", timeout=180)


def had_it_alone(answer: str) -> bool:
    """Assert that WORK, by what it printed, had its card for itself in one of its seconds. Beside a
    borrower it would have half of the card; a busy machine keeps it from having all."""
    busy = [float(line.split()[1]) for line in answer.splitlines() if line.startswith("busy")]
    assert busy and max(busy) > 75, answer
    return True


def test_a_sleeping_owners_card_is_lent_and_comes_back(kube: Kube, stage: "Stage") -> None:
    """The borrower has the card's time until the owner works; then the owner has it. A card that
    is taken back twice within ten minutes rests."""
    pool = stage.pool(spot={**LENDS, "idleAfterSeconds": IDLE_S})
    owner, other = lender(kube, stage, pool=pool), borrowing(kube, stage)
    start_borrower(kube, other, "train")
    (card,) = card_of(kube, owner, "owner")
    assert cards_seen_inside(kube, other, "train") == {card}
    wait_percent(kube, other, "train", 90, 101)
    wait_for("its owner to be told", lambda: _active(kube, owner) == "False")
    assert wait_event(kube, owner, "owner", "OwnerAsleep")
    assert wait_event(kube, other, "train", "SpotGranted")

    def works_alone() -> bool:
        status, answer = kube.exec(owner, "owner", *WORK)
        if status != 0:
            pytest.fail(answer)
        return had_it_alone(answer)

    # Once more where the node agent had no processor for most of the time.
    wait_for("the owner to have its card for itself", works_alone)
    reason = reason_of_eviction(kube, other, "train")
    assert f"card {card} of {owner}/owner" in reason and "(OwnerBack)" in reason
    kube.wait_gone("pod", other, "train")
    assert wait_event(kube, owner, "owner", "OwnerWoke")

    # When the owner sleeps once more, its card is lent once more.
    start_borrower(kube, other, "again")
    woke = time.monotonic()
    status, answer = kube.exec(owner, "owner", "cuda-sample", "alloc", "64")
    assert status == 0, answer
    wait_for("the card to be withdrawn", lambda: not _lendable(kube))
    wait_for("the card to be lendable", lambda: _lendable(kube))
    rested = time.monotonic() - woke
    print(f"lendable {rested:.1f} s after it was taken back a second time")
    assert rested > 2 * IDLE_S


def test_an_owner_that_needs_the_borrowers_memory_waits_for_it(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Its allocation fits on the card only when the borrower is gone."""
    owner, other = lender(kube, stage), borrowing(kube, stage)
    train = borrower(other, "train")
    train["spec"]["containers"][0]["command"] = ["cuda-sample", "hold", str(TAKEN_MIB)]
    kube.apply(train)
    kube.wait_running(other, "train")
    (uuid,) = card_of(kube, owner, "owner")
    with Machine(node_of(kube, mizar_cluster, other, "train").simgpu_dir) as machine:
        wait_for("its memory", lambda: machine.card(uuid).used > TAKEN_MIB << 20)
    status, answer = kube.exec(owner, "owner", "cuda-sample", "alloc", str(NEEDED_MIB))
    assert status == 0, answer
    assert "(OwnerBack)" in reason_of_eviction(kube, other, "train")


def test_a_whole_card_of_a_pod_without_the_shim(kube: Kube, stage: "Stage") -> None:
    """Only NVML shows what the owner does, and only while it does it: it works for longer than the
    node agent may have to wait for a processor."""
    owner, other = stage.tenant(), borrowing(kube, stage)
    stage.pool(spot=LENDS)
    kube.apply(annotated(whole_card_pod(owner, "owner"), low_power="true"))
    kube.wait_running(owner, "owner")
    kube.wait_holding(owner, "owner")
    start_borrower(kube, other, "train")
    wait_percent(kube, other, "train", 90, 101)
    status, answer = kube.exec(owner, "owner", *BUSY, "--seconds", "12")
    assert status == 0, answer
    assert "(OwnerBack)" in reason_of_eviction(kube, other, "train")
    kube.wait_gone("pod", other, "train")


def test_an_owner_without_the_shim_finds_the_reserve_free(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Nothing makes it wait for memory, so its first allocation would fail. The borrower holds all
    memory that it can get."""
    owner, other = stage.tenant(), borrowing(kube, stage)
    stage.pool(spot={**LENDS, "reserve": f"{RESERVE_MIB}Mi"})
    kube.apply(annotated(whole_card_pod(owner, "owner"), low_power="true"))
    kube.wait_running(owner, "owner")
    kube.wait_holding(owner, "owner")
    train = borrower(other, "train")
    train["spec"]["containers"][0]["command"] = ["sh", "-c", TAKES_ALL]
    kube.apply(train)
    kube.wait_running(other, "train")
    kube.wait_holding(other, "train")
    (uuid,) = cards_seen_inside(kube, other, "train")
    with Machine(node_of(kube, mizar_cluster, other, "train").simgpu_dir) as machine:
        card = machine.card(uuid)
        free = (card.total - card.used) >> 20
    assert RESERVE_MIB <= free < RESERVE_MIB + LEFT_MIB, free
    status, answer = kube.exec(owner, "owner", "cuda-sample", "alloc", str(RESERVE_MIB - LEFT_MIB))
    assert status == 0, answer


def test_a_borrower_saves_its_work_within_its_notice(kube: Kube, stage: "Stage") -> None:
    """The owner's pool permits a notice. If the borrower's pod were evicted before the notice is
    over, the kubelet would give it only the second of its own grace period."""
    pool = stage.pool(spot={**LENDS, "noticeSeconds": 20})
    owner, other = lender(kube, stage, pool=pool), borrowing(kube, stage)
    train = borrower(other, "train", restartPolicy="Never")
    train["spec"]["containers"][0]["command"] = ["sh", "-c", SAVES % "USR1"]
    train["metadata"]["annotations"]["mizar.share/spot-notice"] = "20"
    with kept(kube, train):
        wait_percent(kube, other, "train", 90, 101)
        status, answer = kube.exec(owner, "owner", *WORK)
        assert status == 0, answer
        assert "in 20 s" in reason_of_eviction(kube, other, "train")
        assert_saved(kube, other)


def test_a_pool_that_lends_no_more(kube: Kube, stage: "Stage") -> None:
    """A borrower has the grace period that the pool permitted. A PodDisruptionBudget refuses its
    eviction; as nothing of it runs by then, it is deleted."""
    pool = stage.pool(spot={**LENDS, "graceSeconds": 20})
    lender(kube, stage, pool=pool)
    other = borrowing(kube, stage)
    train = borrower(other, "train")
    train["spec"]["containers"][0]["command"] = ["sh", "-c", SAVES % "TERM"]
    train["metadata"]["annotations"]["mizar.share/spot-grace"] = "20"
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    spec = {"minAvailable": 2, "selector": {}}
    kube.apply({**head, "metadata": {"name": "all", "namespace": other}, "spec": spec})
    with kept(kube, train):
        wait_percent(kube, other, "train", 90, 101)
        kube.apply(objects.pool(pool, spot={**LENDS, "enabled": False}))
        assert "no longer lends" in reason_of_eviction(kube, other, "train")
        assert_saved(kube, other)
        pod = wait_for("the pod to be deleted", lambda: _deleted(kube, other, "train"))
        # Where a pod is evicted, the API server writes a reason of its own.
        assert condition(pod, "DisruptionTarget")["reason"] == "Drain"
    kube.wait_gone("pod", other, "train")


@contextmanager
def kept(kube: Kube, pod: Object) -> Iterator[None]:
    """Make the pod and wait until it runs. A finalizer keeps it, with its status, until the end."""
    tenant, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    pod["metadata"]["finalizers"] = [KEPT]
    kube.apply(pod)
    try:
        kube.wait_running(tenant, name)
        yield
    finally:
        patch = ("--type=merge", '--patch={"metadata":{"finalizers":null}}')
        kube.attempt("patch", "pod", name, f"--namespace={tenant}", *patch)


def assert_saved(kube: Kube, tenant: str) -> None:
    """Assert that the program SAVES of the tenant's pod `train` had the time that it takes."""
    ended = wait_for("the borrower to have ended", lambda: end_of(kube, tenant, "train"))
    assert (ended["exitCode"], ended.get("message")) == (0, "saved\n"), ended


def test_nothing_is_lent_of_who_did_not_agree(kube: Kube, stage: "Stage") -> None:
    """One owner of the card agreed and another did not; then the latter goes."""
    tenant = lender(kube, stage)
    other = borrowing(kube, stage)
    kube.apply(share_pod(tenant, "awake"))
    kube.wait_running(tenant, "awake")
    wait_for("no card to be lendable", lambda: not _lendable(kube))
    kube.apply(borrower(other, "train"))
    assert wait_event(kube, other, "train", "SpotWaiting")
    kube.delete("pod", "awake", tenant)
    kube.wait_running(other, "train")

    # An owner that did not agree comes to the card: from then on it is not lent.
    kube.apply(share_pod(tenant, "awake"))
    assert "(OwnerAlive)" in reason_of_eviction(kube, other, "train")
    kube.wait_running(tenant, "awake")


def test_a_card_is_lent_while_all_its_owners_sleep(kube: Kube, stage: "Stage") -> None:
    """Two owners of a card agreed. While one of them works it is not lent, whatever the other does;
    and it is back when either wakes."""
    tenant, other = lender(kube, stage, "asleep"), borrowing(kube, stage)
    kube.apply(annotated(share_pod(tenant, "awake"), low_power="true"))
    kube.wait_running(tenant, "awake")
    kube.wait_holding(tenant, "awake")
    # Before it works, the card is lendable once it has rested for long enough.
    works = (
        f"{' '.join(BUSY)} >/tmp/work 2>&1 </dev/null & echo $!; "
        "until grep -qs busy /tmp/work; do sleep 0.1; done"
    )
    status, process = kube.exec(tenant, "awake", "sh", "-c", works)
    assert status == 0, process
    wait_for("no card to be lendable", lambda: not _lendable(kube))
    kube.apply(borrower(other, "train"))
    assert wait_event(kube, other, "train", "SpotWaiting")
    assert not _lendable(kube)

    status, answer = kube.exec(tenant, "awake", "sh", "-c", f"kill {process}")
    assert status == 0, answer
    kube.wait_running(other, "train")
    assert cards_seen_inside(kube, other, "train") == card_of(kube, tenant, "asleep")
    status, answer = kube.exec(tenant, "asleep", *WORK)
    assert status == 0, answer
    assert "asleep" in reason_of_eviction(kube, other, "train")


def test_an_owner_that_goes_takes_its_card_along(kube: Kube, stage: "Stage") -> None:
    """No pod holds the card any more: the scheduler may give it to any pod. That a program frees
    its memory as it ends is no work."""
    owner, other = lender(kube, stage), borrowing(kube, stage)
    start_borrower(kube, other, "train")
    kube.delete("pod", "owner", owner)
    reason = reason_of_eviction(kube, other, "train")
    assert f"{owner}/owner" in reason and "(OwnerGone)" in reason
    kube.wait_gone("pod", other, "train")


def test_a_card_that_fails_while_it_is_lent(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """The borrower is evicted."""
    owner, other = lender(kube, stage), borrowing(kube, stage)
    start_borrower(kube, other, "train")
    (uuid,) = card_of(kube, owner, "owner")
    node = node_of(kube, mizar_cluster, other, "train")
    with Machine(node.simgpu_dir) as machine:
        machine.set_health(uuid, xid=79)
        try:
            assert "(DeviceLost)" in reason_of_eviction(kube, other, "train")
            kube.wait_gone("pod", other, "train")
        finally:
            machine.set_health(uuid, xid=0)
            # The agent remembers the fault across restarts, until somebody says that the card is
            # repaired.
            repaired = node.path("/var/lib/mizar") / f"{REPAIRED}{uuid}"
            repaired.touch()
            wait_for("the agent to take note", lambda: not repaired.exists())


def test_a_quota_is_kept(kube: Kube, stage: "Stage") -> None:
    """Two cards' owners sleep, and a tenant may have one of the cards."""
    lender(kube, stage), lender(kube, stage)
    other = borrowing(kube, stage, cards=1)
    kube.apply(borrower(other, "one"), borrower(other, "two"))
    running = wait_for("one of them", lambda: _running(kube, other))
    assert len(running) == 1
    kube.delete("pod", running[0], other)
    wait_for("the other", lambda: set(_running(kube, other)) - set(running))


def test_tenants_take_turns(kube: Kube, stage: "Stage") -> None:
    """Two tenants want the only card, whose owner agreed by its pool. The one that had it before
    wants it again, and came first; the other one has borrowed less."""
    pool = stage.pool()
    owner = stage.tenant(HALF, pool=pool)
    kube.apply(objects.pool(pool, spot={**LENDS, "namespaces": [owner]}))
    start_owner(kube, share_pod(owner, "owner"))
    one, two = borrowing(kube, stage, cards=2), borrowing(kube, stage)
    start_borrower(kube, one, "train")
    for tenant, name in ((one, "again"), (two, "train")):
        kube.apply(borrower(tenant, name))
        assert wait_event(kube, tenant, name, "SpotWaiting")
    kube.delete("pod", "train", one)
    kube.wait_running(two, "train")
    assert kube.phase(one, "again") == "Pending"
    kube.delete("pod", "train", two)
    kube.wait_running(one, "again")

    # The card is taken from the tenant whose quota is lowered, while its owner sleeps.
    wait_for("it to be told whose card it has", lambda: _borrows(kube, one, "again"))
    patch = ("--type=merge", '--patch={"spec":{"spot":{"max":0}}}')
    kube.run("patch", "gpuquota", "gpus", f"--namespace={one}", *patch)
    (card,) = card_of(kube, owner, "owner")
    reason = reason_of_eviction(kube, one, "again")
    assert "(QuotaReclaim)" in reason and f"it loses card {card} of {owner}/owner" in reason
    kube.wait_gone("pod", one, "again")


def _borrows(kube: Kube, tenant: str, pod: str) -> str:
    """What the pod's condition says that it borrows. LookupError: it has none yet."""
    return str(condition(kube.get("pod", pod, tenant) or {}, "mizar.share/borrows")["message"])


def _active(kube: Kube, tenant: str) -> str:
    owner = kube.get("pod", "owner", tenant)
    assert owner
    return str(condition(owner, "mizar.share/active")["status"])


def end_of(kube: Kube, tenant: str, pod: str) -> Object | None:
    """How the pod's only container ended, if it has."""
    (found,) = kube.get("pod", pod, tenant)["status"]["containerStatuses"]  # type: ignore[index]
    # The kubelet may be trying to start it again already.
    ended: Object | None = (found["lastState"] | found["state"]).get("terminated")
    return ended


def _deleted(kube: Kube, tenant: str, pod: str) -> Object | None:
    """The pod, once it is being deleted."""
    found = kube.get("pod", pod, tenant)
    return found if found and "deletionTimestamp" in found["metadata"] else None


def _lendable(kube: Kube) -> int:
    """The cards that nodes offer to borrowers, including those that are lent."""
    offered = (one["status"]["allocatable"].get("mizar.spot/gpu", "0") for one in kube.all("nodes"))
    return sum(map(int, offered))


def _running(kube: Kube, tenant: str) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in kube.all("pods", tenant)
        if one["status"].get("phase") == "Running"
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"annotations": {}}}, "may-be-lost"),
        ({"limits": {"nvidia.com/gpu": 1}}, "nvidia.com/gpu"),
        ({"limits": {"mizar.share/gpu.2": 1}}, "mizar.share/gpu.2"),
        ({"limits": {"mizar.spot/gpu": 2}}, "2"),
    ],
    ids=["no controller", "a whole card too", "a share too", "beyond its quota"],
)
def test_what_cannot_be_lent_is_refused(
    kube: Kube, stage: "Stage", change: dict[str, Object], said: str
) -> None:
    """The refusal is a sentence that names the reason."""
    pod = borrower(borrowing(kube, stage), "train")
    pod["metadata"].update(change.get("metadata", {}))
    pod["spec"]["containers"][0]["resources"]["limits"].update(change.get("limits", {}))
    assert said in refusal(kube, pod)


def test_a_tenant_without_a_quota_borrows_nothing(kube: Kube, stage: "Stage") -> None:
    assert "quota" in refusal(kube, borrower(stage.tenant(), "train")).lower()


def refusal(kube: Kube, pod: Object) -> str:
    """What the API server says when it refuses the pod."""
    status, answer = kube.attempt("create", "--filename=-", input=json.dumps(pod))
    assert status != 0, answer
    return answer


def test_a_borrower_stands_still_without_a_node_agent(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Without an agent nothing would pause the borrower for the owner, so it does not work until
    there is an agent again."""
    owner, other = lender(kube, stage), borrowing(kube, stage)
    start_borrower(kube, other, "train")
    wait_percent(kube, other, "train", 90, 101)
    nowhere = '{"spec":{"template":{"spec":{"nodeSelector":{"mizar.test/nowhere":"true"}}}}}'
    back = '{"spec":{"template":{"spec":{"nodeSelector":{"mizar.test/nowhere":null}}}}}'
    agents = ("--namespace=mizar-system", "daemonset/mizar-nodeagent", "--type=merge")
    kube.run("patch", *agents, f"--patch={nowhere}")
    try:
        with Machine(node_of(kube, mizar_cluster, other, "train").simgpu_dir) as machine:
            (card,) = card_of(kube, owner, "owner")
            wait_for("it to stand still", lambda: busy_part(machine, card) == 0)
    finally:
        kube.run("patch", *agents, f"--patch={back}")
    wait_percent(kube, other, "train", 90, 101)
