"""Runs benchmarks: `python -m bench AREA`, or `all`. With STRICT=1, a missed goal is a failure."""

import importlib
import os
import sys
from pathlib import Path

AREAS = sorted(path.stem.removeprefix("area_") for path in Path(__file__).parent.glob("area_*.py"))

STRICT = os.environ.get("STRICT") == "1"


def main() -> int:
    """Measure one area or all. Fails if something could not be measured, or not well enough."""
    asked = sys.argv[1] if len(sys.argv) > 1 else "all"
    if asked != "all" and asked not in AREAS:
        print(f"there is no area {asked!r}; there are: {', '.join(AREAS)}", file=sys.stderr)
        return 2
    failed = False
    for area in AREAS if asked == "all" else [asked]:
        report = importlib.import_module(f"bench.area_{area}").measure()
        report.print()
        print(f"written to {report.write()}")
        failed = failed or bool(report.problems) or (STRICT and bool(report.missed))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
