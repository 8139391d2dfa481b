"""The effort of randomized tests: how many examples, rounds and crashes they run.

MIZAR_EFFORT=1, as in `make check`, is quick. `make test`, and so CI, sets 3: three times as many
examples, rounds and crashes as the tests say, and of hypothesis' examples and the simulations'
schedules far more, since at an effort of 1 only the `quick` number of these is tried. To look for
something rare, set it to 20 or more.

MIZAR_SHRINK=0 only shows whether anything fails, and does not look for a smaller example.

Randomness that is not hypothesis' own comes from MIZAR_SEED, which differs in each run; a failed
run prints it.
"""

import os
import random

from hypothesis import HealthCheck, Phase, settings

EFFORT = float(os.environ.get("MIZAR_EFFORT", "1"))
SEED = int(os.environ.get("MIZAR_SEED") or random.SystemRandom().randrange(1, 1 << 30))
SHRINK = os.environ.get("MIZAR_SHRINK") != "0"
EXAMPLES = 34
"""Examples of a property test that does not set another number."""
QUICK_EXAMPLES = 15
"""Those of the same test at an effort of 1."""


def times(number: int, quick: int | None = None) -> int:
    """The number, multiplied by the effort; at an effort of 1 or less `quick`, if it is given."""
    if quick is not None and EFFORT <= 1:
        return quick
    return max(1, round(number * EFFORT))


def effort(
    examples: int = EXAMPLES, quick: int | None = QUICK_EXAMPLES, **more: object
) -> settings:
    """Settings for a test that draws `examples` examples, multiplied by the effort; at an effort
    of 1 no more than `quick`."""
    few = examples if quick is None else min(examples, quick)
    return settings(
        max_examples=times(examples, few),
        deadline=None,
        phases=[one for one in Phase if SHRINK or one not in (Phase.shrink, Phase.explain)],
        suppress_health_check=[HealthCheck.too_slow],
        **more,  # type: ignore[arg-type]
    )
