"""Run benchmarks: `python -m bench AREA`, or `all`."""

import importlib
import sys
from pathlib import Path

AREAS = sorted(path.stem.removeprefix("area_") for path in Path(__file__).parent.glob("area_*.py"))


def main() -> int:
    """Measure one area or all; fails only when something could not be measured."""
    asked = sys.argv[1] if len(sys.argv) > 1 else "all"
    if asked != "all" and asked not in AREAS:
        print(f"there is no area {asked!r}; there are: {', '.join(AREAS)}", file=sys.stderr)
        return 2
    failed = False
    for area in AREAS if asked == "all" else [asked]:
        report = importlib.import_module(f"bench.area_{area}").measure()
        report.print()
        print(f"written to {report.write()}")
        failed = failed or bool(report.unmeasured)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
