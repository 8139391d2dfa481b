"""The node agent's entry point: `mizar-nodeagent --config /etc/mizar/nodeagent.yaml`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Sequence

from mizar_kube import logs
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError
from mizar_kube.logs import get_logger
from mizar_kube.settings import load, unknown_keys
from mizar_kube.version import version
from mizar_nodeagent.assembly import assemble
from mizar_nodeagent.config import Config
from mizar_nodeagent.errors import CardsUnknown, ConfigRefused
from mizar_nodeagent.loop_watchdog import end_when_hanging
from mizar_nodeagent.nvml import Nvml
from mizar_nodeagent.overrides.report import OverrideReporter
from mizar_nodeagent.overrides.source import OverrideSource
from mizar_nodeagent.single_instance import InstanceLock

log = get_logger(__name__)

THREAD_SWITCH_S = 0.0001
"""Seconds for which a thread may keep the interpreter while others wait. The time slicer must not
wait for a plan, nor Allocate for the time slicer each time that it creates a file."""

GARBAGE_AFTER = 10_000
"""Number of new objects after which the garbage collector looks for cycles among them: a plan
creates thousands of objects and hardly any cycle."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent until SIGTERM or SIGINT. Exits with 2 if the configuration cannot be used, with
    1 if NVML does not answer at the start and the configuration says to exit then."""
    config = load(Config, argv)
    logs.set_up(config.log_level, config.log_format)
    log.info("the node agent starts", version=version(), node=config.node_name)
    if unknown := unknown_keys(config):
        log.warning("unknown settings have no effect", path=config.config, keys=unknown)
    sys.setswitchinterval(THREAD_SWITCH_S)
    try:
        asyncio.run(_watched(config))
    except (ConfigRefused, ConfigError) as error:
        print(f"mizar-nodeagent: {error}", file=sys.stderr)
        sys.exit(2)
    except CardsUnknown as error:
        print(f"mizar-nodeagent: failOnInitError is set, and {error}", file=sys.stderr)
        sys.exit(1)


async def _watched(config: Config) -> None:
    watching = asyncio.create_task(end_when_hanging())
    try:
        await _until_signalled(config)
    finally:
        watching.cancel()


async def _until_signalled(config: Config) -> None:
    """Run until a signal, and then end cleanly: running calls are answered, unused files
    removed."""
    task = asyncio.current_task()
    assert task is not None
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    running = asyncio.create_task(_run(config, signalled.set))
    waiting = asyncio.create_task(signalled.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not running.done():
        log.info("received a signal to stop")
        running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _run(config: Config, end: Callable[[], None]) -> None:
    """Run with the node's own settings. `end`: ends the program, so that it is started again with
    new settings."""
    lock = await InstanceLock.acquire(config.state_dir)
    cards = Nvml(config.driver_root, config.nodes_root)
    try:
        if config.fail_on_init_error:
            await cards.read()
        async with await KubeClient.connect(config.kubeconfig) as client:
            overrides = OverrideSource(config, client)
            config = await overrides.start()
            logs.set_up(config.log_level, config.log_format)
            reporter = OverrideReporter(client, overrides, config.namespace, config.identity)
            async with assemble(config, client, cards) as app, asyncio.TaskGroup() as group:
                log.info("the node agent runs", node=config.node_name)
                _spare_garbage_collection()
                group.create_task(overrides.follow(end))
                if config.namespace:
                    group.create_task(reporter.run())
                await app.run()
    finally:
        cards.close()
        lock.release()


def _spare_garbage_collection() -> None:
    """Exclude imported objects from garbage collection, since they live as long as the process: a
    full pass over them takes some 50 ms, in which the kubelet's calls wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)


if __name__ == "__main__":
    main()
