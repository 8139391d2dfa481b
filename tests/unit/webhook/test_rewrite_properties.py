"""What holds for every pod, whatever is in it."""

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.names import LABEL_SHARE_POD, parse_resource, tenant_of
from mizar_core.pod_requests import asks_of, devices_asked
from support.effort import effort
from unit.webhook.builders import Object, decide, patched, patched_object, pool

POOLS = (pool(), pool("shared", tenancy="Shared", resourcePrefix="shared.example.com"))
NAMESPACE = "team-a"

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


@st.composite
def containers(draw: st.DrawFn) -> Object:
    limits = draw(maps)
    requests = draw(st.one_of(st.just(limits), maps))
    name = draw(st.sampled_from("ab"))
    return {"name": name, "resources": {"limits": dict(limits), "requests": dict(requests)}}


specs = st.fixed_dictionaries(
    {"containers": st.lists(containers(), max_size=2)},
    optional={"initContainers": st.lists(containers(), max_size=1)},
)


def foreign_entries(spec: Object) -> list[tuple[str, int, str, str, str]]:
    """All entries that have nothing to do with a pool."""
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
        for ask in asks_of(patched(spec, decision)):
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
        asks = any(is_share(key) for key in devices_asked(after["spec"]))
        assert (LABEL_SHARE_POD in after["metadata"].get("labels", {})) == asks


@effort(60)
@given(specs)
def test_amounts_stay(spec: Object) -> None:
    def amounts(one: Object) -> list[tuple[int, str]]:
        return sorted((ask.parsed.profile, ask.amount) for ask in asks_of(one))

    decision = decide(spec, *POOLS)
    if not decision.refusals:
        assert amounts(patched(spec, decision)) == amounts(spec)


@effort(60)
@given(specs, st.booleans())
def test_an_update_that_asks_for_nothing_new_passes(spec: Object, template: bool) -> None:
    decision = decide(spec, *POOLS, old=spec, template=template)
    assert (decision.patch, decision.refusals) == ([], ())
