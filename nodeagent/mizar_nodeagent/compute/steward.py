"""The steward: deals out the time of shared cards among the containers that want it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Container:
    """A container by its slot's two files; windows of a card follow one another by `name`."""

    name: str
    limits: Path
    usage: Path


class Steward:
    """Goes round the containers that `containers` names, in a thread of its own.

    `containers` is asked often, from that thread. `clock`: nanoseconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        containers: Callable[[], Sequence[Container]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._containers = containers
        self._clock = clock
        self._stopped = threading.Event()

    def round(self, now_ns: int | None = None) -> float:
        """Look at every container once and write what follows; seconds until the next round."""
        return 0.1

    def run(self) -> None:
        """Rounds until `stop`."""
        while not self._stopped.wait(self.round()):
            pass

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="steward", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was written stays."""
        self._stopped.set()
        self._thread.join()
