"""What holds for every pod, whatever it contains."""

from collections import Counter

from hypothesis import event, given, settings
from hypothesis import strategies as st

from mizar_core.names import LABEL_SHARE_POD, parse_resource, tenant_of
from mizar_core.pod_requests import device_requests, devices_requested
from mizar_operator.webhook.pod_review import Decision
from support.effort import effort
from unit.webhook.builders import Object, decide, patched, patched_object, pool

POOLS = (pool(), pool("shared", tenancy="Shared", resourcePrefix="shared.example.com"))

prefixes = st.sampled_from(
    [
        "mizar.share",
        "team-a.mizar.share",
        "team-b.mizar.share",
        "shared.example.com",
        "team-a.shared.example.com",
        "amd.com",
    ]
)
shares = st.builds(
    "{}{}gpu.{}".format, prefixes, st.sampled_from("./"), st.sampled_from([2, 3, 4, 16])
)
others = st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "x/gpu.", "example.com/gpu.02", "~/~"])
maps = st.dictionaries(st.one_of(shares, others), st.sampled_from(["1", "2"]), max_size=3)


OWN = ("mizar.share.gpu.{}", "mizar.share/gpu.{}", "team-a.mizar.share/gpu.{}")
"""As team-a's pods may ask for the devices of the first pool."""


@st.composite
def containers(draw: st.DrawFn) -> Object:
    """Asks for anything: most pods with such a container are refused, or left as they are."""
    limits = draw(maps)
    requests = draw(st.one_of(st.just(limits), maps))
    return _container(limits, requests, draw(st.sampled_from("ab")))


@st.composite
def honest_containers(draw: st.DrawFn) -> Object:
    """Asks for some of one profile that there is, in whatever spelling, and for other things."""
    key = draw(st.sampled_from(OWN)).format(draw(st.sampled_from([2, 4, 16])))
    limits = {key: draw(st.sampled_from("123"))} | draw(st.sampled_from([{}, {"cpu": "1"}]))
    return _container(limits, limits, draw(st.sampled_from("ab")))


def _container(limits: Object, requests: Object, name: str) -> Object:
    return {"name": name, "resources": {"limits": dict(limits), "requests": dict(requests)}}


def _specs(of: st.SearchStrategy[Object], least: int) -> st.SearchStrategy[Object]:
    return st.fixed_dictionaries(
        {"containers": st.lists(of, min_size=least, max_size=3)},
        optional={"initContainers": st.lists(of, max_size=1)},
    )


specs = st.one_of(_specs(honest_containers(), 1), _specs(containers(), 0))


def note(decision: Decision) -> Decision:
    """For statistics: what was decided."""
    event("refused" if decision.refusals else f"{len(decision.rewritten)} keys are rewritten")
    return decision


def foreign_entries(spec: Object) -> list[tuple[str, int, str, str, str]]:
    """All entries that no pool is concerned with."""
    return sorted(
        (kind, at, section, key, amount)
        for kind, listed in spec.items()
        for at, one in enumerate(listed)
        for section, resources in one["resources"].items()
        for key, amount in resources.items()
        if not is_share(key)
    )


def is_share(key: str) -> bool:
    parsed = parse_resource(key)
    known = [one.spec.resource_prefix for one in POOLS]
    return parsed is not None and any(
        parsed.prefix == prefix or tenant_of(parsed.prefix, prefix) for prefix in known
    )


@effort(60)
@given(specs, st.booleans())
def test_a_second_review_finds_nothing_to_do(spec: Object, template: bool) -> None:
    decision = decide(spec, *POOLS, template=template)
    if not decision.refusals:
        after = patched(spec, decision)
        labels = {LABEL_SHARE_POD: "true"}
        again = decide(after, *POOLS, template=template, labels=labels)
        assert (again.patch, again.refusals) == ([], ())


@effort(60)
@given(specs, st.booleans())
def test_nobody_elses_resources_are_touched(spec: Object, template: bool) -> None:
    decision = decide(spec, *POOLS, template=template)
    if not decision.refusals:
        assert foreign_entries(patched(spec, decision)) == foreign_entries(spec)


@effort(60)
@given(specs)
def test_an_accepted_pod_asks_for_its_own_tenants_devices_only(spec: Object) -> None:
    decision = decide(spec, *POOLS)
    if not decision.refusals:
        for ask in device_requests(patched(spec, decision)):
            if is_share(ask.key):
                assert ask.parsed.form == "slashed"
                assert ask.parsed.prefix in ("team-a.mizar.share", "shared.example.com")


@effort(60)
@given(specs, st.none() | st.just({"app": "x"}))
def test_whoever_gets_devices_has_the_label(spec: Object, labels: dict[str, str] | None) -> None:
    decision = decide(spec, *POOLS, labels=labels)
    if not decision.refusals:
        metadata = {} if labels is None else {"labels": labels}
        after = patched_object({"metadata": metadata, "spec": spec}, decision)
        asks = any(is_share(key) for key in devices_requested(after["spec"]))
        assert (LABEL_SHARE_POD in after["metadata"].get("labels", {})) == asks


@effort(60)
@given(specs)
def test_amounts_stay_where_they_are(spec: Object) -> None:
    """The amounts of each container, in requests and in limits, stay."""

    def amounts(one: Object) -> list[tuple[object, ...]]:
        return sorted((*ask.path, ask.parsed.profile, ask.amount) for ask in device_requests(one))

    decision = note(decide(spec, *POOLS))
    if not decision.refusals:
        assert amounts(patched(spec, decision)) == amounts(spec)


def test_there_are_patches_to_look_at() -> None:
    """There are as many as possible, and from pods of several containers. The pods are the same
    each time, since chance must not decide whether this test passes."""
    keys = Counter[int]()

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(specs)
    def look(spec: Object) -> None:
        moved = decide(spec, *POOLS).patch
        keys[len([one for one in moved if one["op"] == "remove"])] += 1

    look()
    patches = sum(count for moved, count in keys.items() if moved)
    assert patches >= 15
    assert sum(count for moved, count in keys.items() if moved > 2) >= 5


@effort(60)
@given(specs, st.booleans())
def test_an_update_that_asks_for_nothing_new_passes(spec: Object, template: bool) -> None:
    decision = decide(spec, *POOLS, old=spec, template=template)
    assert (decision.patch, decision.refusals) == ([], ())
