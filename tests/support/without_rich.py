"""Imports structlog as it is in the images, where rich is not installed: structlog imports all of
rich if it finds it, for tracebacks that no program of Mizar prints, and a program that reads cards
took twice as long to start."""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
