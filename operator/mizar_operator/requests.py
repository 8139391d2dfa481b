"""How many devices of which resource a pod asks for, counted as the scheduler does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mizar_core.names import parse_resource


def devices_asked(spec: Mapping[str, Any]) -> dict[str, int]:
    """Devices per resource of a pod's spec.

    The containers' sum, sidecars (init containers that always restart) included, or what the
    init containers need at some moment, whichever is more:
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            running.update(_of(container))
            most |= running
        else:
            most |= running + _of(container)
    for container in spec.get("containers") or ():
        running.update(_of(container))
    return dict(sorted((most | running).items()))


def _of(container: Mapping[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for name, count in asked.items():
        parsed = parse_resource(name)
        # An extended resource comes in whole numbers; the API server lets nothing else through.
        if parsed is not None and parsed.form == "slashed" and str(count).isdigit():
            found[name] = int(count)
    return found
