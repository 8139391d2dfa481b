"""The rules by which cards are lent: the operator writes them, and every node agent reads them.

They are JSON in a ConfigMap beside the operator, so that a node agent needs to read no GPUPool,
whose status changes with every card of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field, ValidationError

from mizar_core.errors import SpotRulesRefused
from mizar_core.field_types import Name, NodeSelector
from mizar_core.model_base import Model
from mizar_core.models import GPUPool, Spot
from mizar_core.names import PHYSICAL_RESOURCE

CONFIG_MAP: Final = "mizar-spot"
KEY: Final = "rules.json"
"""The key in the ConfigMap's data."""


class SpotRule(Model):
    """The rule for lending the cards of one pool. `node_selector` and `card_models` are the
    pool's."""

    pool: Name
    node_selector: NodeSelector = Field(default_factory=dict)
    card_models: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    physical_resource: Name = PHYSICAL_RESOURCE
    spot: Spot


class SpotRules(Model):
    """The rules of all pools that lend cards, in the order of their names. A card that a shadow pod
    holds has the rule of that pod's pool, and a card that is held whole that of the first pool that
    it belongs to; a card without a rule is not lent."""

    rules: tuple[SpotRule, ...] = ()

    def to_json(self) -> str:
        """The ConfigMap's value; the same rules are always the same text."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> SpotRules:
        """The rules in the ConfigMap's value. Raises SpotRulesRefused if the text is not valid."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SpotRulesRefused(f"the rules for spot cards are damaged: {error}") from error


def spot_rules(pools: Iterable[GPUPool]) -> SpotRules:
    """The rules that follow from the pools."""
    return SpotRules(
        rules=tuple(
            SpotRule(
                pool=pool.metadata.name,
                node_selector=pool.spec.node_selector,
                card_models=pool.spec.card_models,
                physical_resource=pool.spec.physical_resource,
                spot=pool.spec.spot,
            )
            for pool in sorted(pools, key=lambda one: one.metadata.name)
            if pool.spec.spot.enabled
        )
    )
