"""How hard the property tests try: MIZAR_EFFORT=20 draws twenty times as many examples."""

import os

from hypothesis import HealthCheck, settings


def effort(examples: int, **more: object) -> settings:
    """Settings for a test that draws so many examples when nothing else is asked for."""
    return settings(
        max_examples=int(examples * float(os.environ.get("MIZAR_EFFORT", "1"))),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        **more,  # type: ignore[arg-type]
    )
