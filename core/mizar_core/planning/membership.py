"""Which nodes and card models belong to a pool."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from mizar_core.models import GPUPool
from mizar_core.names import NODE_LABEL_CARD_MODEL
from mizar_core.planning.snapshot import NodeView


def in_pool(node: NodeView, pool: GPUPool) -> bool:
    """Whether the pool's shadow pods may go there: selector, and models if it names any."""
    if not frozenset(pool.spec.node_selector.items()) <= node.labels:
        return False
    if pool.spec.physical_resource not in node.cards:
        return False
    if not pool.spec.card_models:
        return True
    # Without the label nobody could say in a pod's affinity that the node will do.
    model = node.label(NODE_LABEL_CARD_MODEL)
    return model is not None and matches(model, pool.spec.card_models)


def matches(model: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs fits the model, as a node's label or as NVML has it: the label has
    `-` for blanks. Case does not count."""
    return any(fnmatchcase(_plain(model), _plain(glob)) for glob in globs)


def _plain(text: str) -> str:
    return text.replace(" ", "-").lower()


def models_of(pool: GPUPool, nodes: Iterable[NodeView]) -> tuple[str, ...] | None:
    """The models on the pool's nodes that its globs allow, sorted; None if it allows any.

    A scheduler knows no globs: a pod's affinity can only list the models that there are.
    """
    if not pool.spec.card_models:
        return None
    found = {node.label(NODE_LABEL_CARD_MODEL) for node in nodes if in_pool(node, pool)}
    return tuple(sorted(model for model in found if model))
