"""What a pod may not ask for, each with a sentence that says what to do instead. Pure."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from mizar_core.pod_requests import Spec, resource_entries
from mizar_operator.webhook.judged import Judged

Place = tuple[tuple[str, ...], str]


def refused(asks: Iterable[Judged]) -> Iterator[str]:
    """Names that this namespace can never have."""
    for one in asks:
        if one.verdict.refusal:
            yield one.tell(one.verdict.refusal)


def doubted(asks: Iterable[Judged]) -> Iterator[str]:
    """Names that nobody can have as the pools are now."""
    for one in asks:
        if one.verdict.doubt:
            yield one.tell(one.verdict.doubt)


def twice(asks: Iterable[Judged]) -> Iterator[str]:
    """One resource under two names: which number holds?"""
    for (_, target), same in groupby(sorted(asks, key=_place), key=_place):
        found = list(same)
        if len(found) > 1:
            names = " and ".join(sorted(one.ask.key for one in found))
            yield found[0].tell(f"{names} are the same: keep one of them", target)


def uneven(asks: Iterable[Judged]) -> Iterator[str]:
    """Devices can't be overcommitted: what is requested is what is used."""
    amounts: dict[Place, dict[str, Judged]] = {}
    for one in asks:
        amounts.setdefault((one.ask.path[:-1], one.target), {})[one.ask.section] = one
    for (_, target), sections in amounts.items():
        limit, request = sections.get("limits"), sections.get("requests")
        if request and not limit:
            yield request.tell("it is in requests alone: put it into limits", target)
        elif request and limit and request.ask.amount != limit.ask.amount:
            both = f"requests {request.ask.amount} and limits {limit.ask.amount} differ"
            yield limit.tell(f"{both}: give limits alone", target)


def mixed(asks: Iterable[Judged], spec: Spec) -> Iterator[str]:
    """A container has one set of limits, and that comes with the devices of one resource."""
    everything: dict[str, set[str]] = {}
    for entry in resource_entries(spec):
        everything.setdefault(entry.container, set()).add(entry.key)
    for name, same in groupby(sorted(asks, key=_container), key=_container):
        found = list(same)
        targets = sorted({one.target for one in found})
        if len(targets) > 1:
            names = " and ".join(targets)
            yield f"container '{name}' asks for {names}: it can have devices of one of them only"
        whole = {one.verdict.whole_card for one in found} & everything[name]
        for resource in sorted(whole):
            yield (
                f"container '{name}' asks for {resource} and {targets[0]}: it can have whole cards"
                " or shares; use two containers"
            )


def _place(one: Judged) -> Place:
    return one.ask.path, one.target


def _container(one: Judged) -> str:
    return one.ask.container
