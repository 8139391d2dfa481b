"""How hard the tests try that try at random.

MIZAR_EFFORT=1, as in `make check`, is quick. `make test`, and so CI, tries three times as hard:
as many more examples, rounds and deaths. Who looks for something rare asks for 20 or more.

Who only wants to know whether anything fails sets MIZAR_SHRINK=0, and waits for no smaller example.

What has no seed of hypothesis' draws from MIZAR_SEED, another one each time; a run that fails says
which it was.
"""

import os
import random

from hypothesis import HealthCheck, Phase, settings

EFFORT = float(os.environ.get("MIZAR_EFFORT", "1"))
SEED = int(os.environ.get("MIZAR_SEED") or random.SystemRandom().randrange(1, 1 << 30))
SHRINK = os.environ.get("MIZAR_SHRINK") != "0"
EXAMPLES = 34
"""Examples of a property test that asks for no other number."""


def times(number: int) -> int:
    """The number, multiplied by the effort."""
    return max(1, round(number * EFFORT))


def effort(examples: int = EXAMPLES, **more: object) -> settings:
    """Settings for a test that draws so many examples when nothing else is asked for."""
    return settings(
        max_examples=times(examples),
        deadline=None,
        phases=[one for one in Phase if SHRINK or one not in (Phase.shrink, Phase.explain)],
        suppress_health_check=[HealthCheck.too_slow],
        **more,  # type: ignore[arg-type]
    )
