"""Parses overrides, which are settings for some nodes by name or label, and applies them. Pure.

- nodes: [gpu-7]
  nodeSelector: {example.com/rack: old} # one of the two suffices
  settings: {cardAccess: {strategy: CDI}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mizar_nodeagent.config import CardAccess, Config
from mizar_nodeagent.errors import OverridesRefused

Settings = Mapping[str, Any]
"""The settings of an override, in camelCase as in the values."""

MOUNTED: Final = {"nri_socket", "cdi_dirs", "nvidia_runtime_config", "host_root"}
"""Settings of `cardAccess` that must be the same on all nodes, since the agent's pod has mounts for
them."""
PLAIN: Final = ("log_level", "fail_requests_greater_than_one", "ignored_xids")
"""Settings besides `cardAccess` that an override may have."""

_CAMEL = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


def _part(kind: type[BaseModel], names: Iterator[str], **more: Any) -> type[BaseModel]:
    """A model with these fields of `kind`, all of which are optional, and with `more` fields."""
    fields: dict[str, Any] = {name: (_type(kind.model_fields[name]), None) for name in names}
    return create_model(f"Override{kind.__name__}", __config__=_CAMEL, **fields, **more)


def _type(field: FieldInfo) -> Any:
    """The field's type, with the field's checks."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


_ACCESS = _part(CardAccess, (one for one in CardAccess.model_fields if one not in MOUNTED))
_SETTINGS = _part(Config, iter(PLAIN), card_access=(_ACCESS, None))


class _Override(BaseModel):
    """The settings of some nodes. `settings` are validated only on the nodes that they are for."""

    model_config = _CAMEL

    nodes: tuple[str, ...] = ()
    node_selector: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, Any]


@dataclass(frozen=True)
class Overrides:
    """All overrides of an installation."""

    each: tuple[_Override, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Overrides:
        """Read the ConfigMap's YAML. Raises OverridesRefused."""
        try:
            found = yaml.safe_load(text) or []
        except yaml.YAMLError as error:
            raise OverridesRefused(f"the overrides are not valid YAML: {error}") from error
        if not isinstance(found, list):
            raise OverridesRefused("the overrides must be a list of nodes with their settings")
        return cls(tuple(_parsed(at, one) for at, one in enumerate(found)))

    @property
    def by_label(self) -> bool:
        """Whether an override selects nodes by labels."""
        return any(one.node_selector for one in self.each)

    def of(self, node: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """The settings that differ on the node with this name and these labels; of several
        overrides, later ones win. Raises OverridesRefused if they are invalid."""
        found: dict[str, Any] = {}
        for at, one in enumerate(self.each):
            if node in one.nodes or (
                one.node_selector and one.node_selector.items() <= labels.items()
            ):
                _check(_SETTINGS, one.settings, f"overrides[{at}].settings")
                access = {**found.get("cardAccess", {}), **one.settings.get("cardAccess", {})}
                found |= {**one.settings, **({"cardAccess": access} if access else {})}
        return found


def applied(config: Config, settings: Settings) -> Config:
    """The configuration with these settings changed. Raises OverridesRefused if the result is
    invalid."""
    if not settings:
        return config
    changed = _check(_SETTINGS, settings, "overrides")
    update = {name: getattr(changed, name) for name in changed.model_fields_set}
    if access := update.pop("card_access", None):
        own = {name: getattr(access, name) for name in access.model_fields_set}
        kept = {
            name: getattr(config.card_access, name) for name in config.card_access.model_fields_set
        }
        update["card_access"] = _check(CardAccess, {**kept, **own}, "overrides: cardAccess")
    return config.model_copy(update=update)


def _parsed(at: int, body: Any) -> _Override:
    found: _Override = _check(_Override, body, f"overrides[{at}]")
    if not (found.nodes or found.node_selector):
        raise OverridesRefused(f"overrides[{at}] must select nodes by nodes or nodeSelector")
    return found


def _check(kind: type[BaseModel], body: Any, where: str) -> Any:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise OverridesRefused(
            "; ".join(_sentence(where, one) for one in error.errors())
        ) from error


def _sentence(where: str, error: ErrorDetails) -> str:
    place = ".".join((where, *(to_camel(str(one)) for one in error["loc"])))
    if error["type"] == "extra_forbidden":
        return f"{place}: there is no such setting, or it cannot differ between nodes"
    if error["type"] == "missing":
        return f"{place} must be given"
    message = error["msg"].removeprefix("Value error, ").replace("Input should", "it must")
    return f"{place}: {message}, not {error['input']!r}"
