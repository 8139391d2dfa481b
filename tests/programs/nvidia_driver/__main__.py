"""python -m nvidia_driver record: gets every release, and writes down what it answers."""

from __future__ import annotations

import sys

from nvidia_driver.debian import RELEASES, DriverError, get
from nvidia_driver.facts import record


def main(words: list[str]) -> int:
    """Returns 2 after a wrong command, 1 if a driver cannot be had."""
    if words != ["record"]:
        print(__doc__, file=sys.stderr)
        return 2
    drivers = []
    for release in RELEASES:
        print(f"getting NVIDIA's driver {release.number} from Debian ({release.suite})", flush=True)
        try:
            drivers.append(get(release))
        except DriverError as error:
            print(error, file=sys.stderr)
            return 1
    record(drivers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
