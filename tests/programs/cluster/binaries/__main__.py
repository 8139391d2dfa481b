"""python -m cluster.binaries [PROGRAM...]: make the programs available, print their folder."""

from __future__ import annotations

import sys

from cluster.binaries import ALL, Progress, SetupError, ensure


def main(names: list[str]) -> int:
    try:
        print(ensure(Progress(), names or ALL).dir)
    except (SetupError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
