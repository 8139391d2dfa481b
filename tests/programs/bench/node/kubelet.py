"""The tests' kubelet with a stop-watch: measures how long it waits for each answer of the agent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from unit.nodeagent.fake_kubelet import FakeKubelet

CALLS = ("Allocate", "GetPreferredAllocation", "PreStartContainer")


class TimedKubelet(FakeKubelet):
    """`waited_ms`: milliseconds of each answered call since `forget`, by the call's name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.waited_ms: dict[str, list[float]] = {}
        self.forget()

    def forget(self) -> None:
        """Drop the measurements so far."""
        self.waited_ms = {name: [] for name in CALLS}

    async def connect(self, resource: str, socket: Path) -> None:
        """Connect, as a kubelet does when a plugin registers."""
        await super().connect(resource, socket)
        client = self._endpoints[resource]
        client.stub = _TimedStub(client.stub, self)


class _TimedStub:
    """The calls of a device plugin."""

    def __init__(self, stub: Any, kubelet: TimedKubelet) -> None:
        self._stub = stub
        self._kubelet = kubelet

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)
        if name not in CALLS:
            return call

        async def timed(request: Any, **how: Any) -> Any:
            began = time.perf_counter()
            answer = await call(request, **how)
            self._kubelet.waited_ms[name].append((time.perf_counter() - began) * 1000)
            return answer

        return timed
