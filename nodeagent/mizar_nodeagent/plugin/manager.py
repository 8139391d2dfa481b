"""Manages the device plugins of all resources: starts a plugin for a new resource, restarts one
that failed, and retires one that has had no device for long. A plugin registers with the kubelet by
itself, also after a restart of the kubelet: see registration.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from mizar_kube.logs import get_logger
from mizar_nodeagent.kubelet.poller import Advertised
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.plugin.registration import SETTLE_S, ResourcePlugin

log = get_logger(__name__)

RETIRE_AFTER_S = 300.0
"""Seconds without a device after which a plugin ends; the kubelet forgets its resource later."""
UNDONE_AFTER_S = 10.0
"""Seconds after which a kubelet that has a stream open, but none of the listed devices, counts as
having undone the registration; otherwise it has them within a moment. On a busy node the kubelet
may handle the end of an earlier stream late, and then disconnects the newest plugin without ending
its stream."""


@dataclass
class _Running:
    """A plugin and the task that runs it. `empty_since`: since when it has had no device.
    `missing_since`: since when the kubelet has had none of its healthy devices, though it has a
    stream open. Both in monotonic seconds, None while that is not so."""

    plugin: ResourcePlugin
    task: asyncio.Task[None]
    empty_since: float | None = None
    missing_since: float | None = None

    def is_undone(self, healthy: set[str], kubelet: Collection[str], at: float) -> bool:
        """Whether the kubelet has undone the registration, so that the plugin must register again.
        `healthy`: IDs of the plugin's healthy devices. `kubelet`: IDs of the resource's devices
        that the kubelet had at the time `at` (monotonic seconds)."""
        if not self.plugin.connected or not healthy or not healthy.isdisjoint(kubelet):
            self.missing_since = None
            return False
        if self.missing_since is None:
            self.missing_since = at
        if at - self.missing_since < UNDONE_AFTER_S:
            return False
        self.missing_since = None
        return True


class PluginManager:
    """Runs a device plugin for each resource that has devices. `make` creates the plugin of a
    resource; `clock` returns monotonic seconds."""

    def __init__(
        self,
        make: Callable[[str], ResourcePlugin],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def apply(
        self, lists: Mapping[str, tuple[Device, ...]], advertised: Advertised | None = None
    ) -> None:
        """Publish these device lists to the kubelet; resources without a list have no devices any
        more. `advertised`: the devices that the kubelet has; None if it does not answer."""
        for resource, devices in lists.items():
            running = self._get_or_start(resource)
            running.plugin.update(devices)
            if advertised is None:
                running.missing_since = None
            else:
                self._repair(resource, running, advertised)
        for resource, running in list(self._running.items()):
            self._retire_or_restart(resource, running, bool(lists.get(resource)))

    def connected(self) -> dict[str, bool]:
        """For each resource, whether the kubelet has exactly one stream open to its plugin."""
        return {resource: one.plugin.connected for resource, one in self._running.items()}

    async def close(self) -> None:
        """End all plugins. Running calls get GRACE_S (server.py) to finish."""
        for running in self._running.values():
            self._end(running)
        self._running.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _repair(self, resource: str, running: _Running, advertised: Advertised) -> None:
        healthy = {one.id for one in running.plugin.streams.devices if one.healthy}
        kubelet = advertised.devices.get(resource, frozenset())
        if running.is_undone(healthy, kubelet, advertised.at):
            log.warning("the kubelet has none of the devices in its list", resource=resource)
            running.plugin.register_again()

    def _get_or_start(self, resource: str) -> _Running:
        if resource not in self._running:
            plugin = self._make(resource)
            self._running[resource] = _Running(plugin, self._start(resource, plugin))
        return self._running[resource]

    def _start(self, resource: str, plugin: ResourcePlugin) -> asyncio.Task[None]:
        name = f"plugin {resource}"
        before = {task for task in self._ending if task.get_name() == name}
        return asyncio.create_task(_run_after(before, plugin), name=name)

    def _retire_or_restart(self, resource: str, running: _Running, has_devices: bool) -> None:
        if running.task.done():
            # Start the plugin again, so that a bug costs one registration and not the resource. A
            # task that was cancelled was so by mistake, for example by a gRPC channel's closing.
            error = None if running.task.cancelled() else running.task.exception()
            log.error("a plugin failed", resource=resource, exc_info=error)
            running.task = self._start(resource, running.plugin)
        if has_devices:
            running.empty_since = None
            return
        running.plugin.update(())
        if running.empty_since is None:
            running.empty_since = self._clock()
        if self._clock() - running.empty_since > RETIRE_AFTER_S:
            log.info("plugin stopped: no devices for a long time", resource=resource)
            del self._running[resource]
            self._end(running)

    def _end(self, running: _Running) -> None:
        running.task.cancel()
        self._ending.add(running.task)
        running.task.add_done_callback(self._ending.discard)


async def _run_after(before: set[asyncio.Task[None]], plugin: ResourcePlugin) -> None:
    """Run the plugin after `before`, the resource's earlier plugins, have ended and the kubelet has
    noticed it: when a stream ends, the kubelet disconnects the plugin that registered last."""
    if before:
        await asyncio.wait(before)
        await asyncio.sleep(SETTLE_S)
    await plugin.run()
