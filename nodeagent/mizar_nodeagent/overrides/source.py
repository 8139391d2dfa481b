"""Finds this node's overrides, keeps the last usable ones on disk, and detects changes.

An override that cannot be used stops nothing: the agent keeps the settings that it had, also after
a restart, and reports the problem.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.kinds import NODE, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.config import Config
from mizar_nodeagent.container.dev_root import check_dev_root
from mizar_nodeagent.errors import ConfigRefused, OverridesRefused
from mizar_nodeagent.files import write_atomically
from mizar_nodeagent.overrides.model import Overrides, applied
from mizar_nodeagent.read_again import spread

log = get_logger(__name__)

EVERY_S: Final = 5.0
"""Seconds between two looks at the file, which the kubelet renews within a minute or so."""
LABELS_EVERY_S: Final = 60.0
"""Seconds between two reads of the node's labels, on average (see `spread`), and at most between
two tries after errors. If labels were read every EVERY_S, 5,000 agents would read 1,000 nodes a
second."""
KEPT: Final = "overrides.json"
"""Name of the file in the state folder with the settings that were used last, and that are used
again if the present ones cannot be."""

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """The settings that differ on this node. `problem`: why they are not those in the ConfigMap
    now; empty if they are. `certain`: False while the API server does not answer for the node's
    labels, so that it is not known whether the settings are right."""

    settings: Mapping[str, Any]
    problem: str = ""
    certain: bool = True


class NodeLabels:
    """The node's labels, read about every LABELS_EVERY_S. `clock` returns seconds, `random` numbers
    in [0, 1)."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._ref = Ref(NODE, node)
        self._clock = clock
        self._random = random
        self._retry = Backoff(EVERY_S, LABELS_EVERY_S, random)
        self._found: Labels | None = None
        self._due = float("-inf")

    async def now(self) -> Labels | None:
        """The labels as last read, about LABELS_EVERY_S ago at most; None while the API server does
        not answer."""
        if self._clock() >= self._due:
            await self._read()
        return self._found

    async def _read(self) -> None:
        try:
            self._found = await self._ask()
        except KubeError as error:
            log.info("the node's labels are not known now", error=error)
            self._found, wait = None, self._retry.next()
        else:
            self._retry.reset()
            wait = spread(LABELS_EVERY_S, self._random)
        self._due = self._clock() + wait

    async def _ask(self) -> Labels:
        try:
            node = await self._client.get(self._ref, cached=self._found is not None)
        except NotFound:
            return {}
        return dict(node.get("metadata", {}).get("labels") or {})


class OverrideSource:
    """The source of the node's overrides. `config`: the settings of all nodes. `labels`: the node's
    labels, which are read only if an override selects by labels. `used`: the settings that differ
    in the running agent, set by `start`. `problem`: why the present overrides cannot be used."""

    def __init__(
        self, config: Config, client: KubeClient, labels: NodeLabels | None = None
    ) -> None:
        self._config = config
        self._labels = labels or NodeLabels(client, config.node_name)
        self._kept = config.state_dir / KEPT
        self.used: Mapping[str, Any] = {}
        self.problem = ""

    async def start(self) -> Config:
        """Look once, remember the settings, and return the node's configuration."""
        found = await self.look()
        self.used, self.problem = found.settings, found.problem
        if found.problem:
            log.error("the node's overrides cannot be used", problem=found.problem)
        elif found.certain:
            self._keep(found.settings)
        if found.settings:
            log.info("settings are different on this node", settings=json.dumps(found.settings))
        return applied(self._config, found.settings)

    async def follow(self, changed: Callable[[], None]) -> None:
        """Look every EVERY_S until the agent must run with other settings, which takes a restart;
        then call `changed` and return."""
        while True:
            await asyncio.sleep(EVERY_S)
            found = await self.look()
            if not found.certain:
                continue
            if found.problem and found.problem != self.problem:
                log.error("the node's overrides cannot be used", problem=found.problem)
            self.problem = found.problem
            if not found.problem and found.settings != self.used:
                log.info("settings of this node have changed: the agent starts again")
                self._keep(found.settings)
                changed()
                return

    async def look(self) -> Found:
        """The node's present settings, or those that were used last if the present ones are unknown
        or cannot be used."""
        try:
            text = _read(self._config.overrides)
            overrides = Overrides.parse(text)
            labels = await self._labels.now() if overrides.by_label else {}
            if labels is None:
                return Found(self._last_good(), certain=False)
            settings = overrides.of(self._config.node_name, labels)
            self._check(settings)
            return Found(settings)
        except (OverridesRefused, ConfigRefused) as error:
            return Found(self._last_good(), problem=str(error))

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise OverridesRefused or ConfigRefused if these settings cannot be used."""
        changed = applied(self._config, settings)
        if "devRoot" in settings.get("cardAccess", {}):
            check_dev_root(changed.access)

    def _last_good(self) -> Mapping[str, Any]:
        """The settings that were used last; none if this version of the agent cannot use them."""
        try:
            settings = json.loads(self._kept.read_bytes())
            self._check(settings)
        except (OSError, ValueError, TypeError, AttributeError, OverridesRefused, ConfigRefused):
            return {}
        return dict(settings)

    def _keep(self, settings: Mapping[str, Any]) -> None:
        try:
            write_atomically(self._kept, json.dumps(settings).encode())
        except OSError as error:
            log.warning("the node's overrides cannot be remembered", error=error)


def _read(path: Path | None) -> str:
    try:
        return path.read_text() if path else ""
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise OverridesRefused(f"{path} cannot be read: {error}") from error
