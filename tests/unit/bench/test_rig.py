"""The bench of compute shares can tell good from bad: roughly, since the machine may be busy."""

import subprocess

from bench.compute.rig import Case, Tenant, Work, run
from bench.figures import ROOT

MS = 1_000_000
LOAD = "us_200"


def _percent(work: Work) -> float:
    later = work[300:]
    return sum(later) / len(later) / MS * 100


def test_without_the_shim_two_share_alike_and_with_it_as_they_are_told() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    bare = Case("bare", (Tenant((LOAD,), mode=None),) * 2)
    alone = Case("alone", (Tenant((LOAD, LOAD), 20, "Hard"),))
    (first, second), (limited,) = run([bare, alone], 1.3)
    assert abs(_percent(first) - _percent(second)) < 10
    assert _percent(first) + _percent(second) > 80
    assert 12 < _percent(limited) < 28


def test_who_needs_less_than_its_share_pays_for_what_it_used() -> None:
    """Not for the time in which the card waited for it: or it would be slowed."""
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    bare, limited = (Case(str(mode), (Tenant(("eager",), 50, mode),)) for mode in (None, "Hard"))
    ((alone,), (work,)) = run([bare, limited], 1.3)
    assert _percent(work) > 0.7 * _percent(alone)
