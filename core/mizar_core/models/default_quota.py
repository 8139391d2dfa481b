"""The default quota that a pool gives to namespaces that have no GPUQuota."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mizar_core.field_types import Count, Seconds
from mizar_core.model_base import Model
from mizar_core.models.isolation import IsolationOverride
from mizar_core.models.label_selector import LabelSelector
from mizar_core.models.profile_quota import ProfileQuota
from mizar_core.schema import list_map


class DefaultQuota(Model):
    """The GPUQuota that a namespace without one gets when its first share pod waits. It is named
    like the pool and has the label mizar.share/default-quota."""

    namespace_selector: LabelSelector = LabelSelector()
    """Labels of the namespaces that get one; all namespaces by default."""

    profiles: Annotated[
        tuple[ProfileQuota, ...],
        Field(min_length=1, max_length=16, json_schema_extra=list_map("devices")),
    ]
    """The profiles that such a namespace may use, and how many shadow pods of each."""

    max_cards: Count | None = None
    """Cards that all shadow pods of one such namespace may hold; unlimited by default."""

    isolation: IsolationOverride | None = None
    """Overrides of the pool's isolation."""

    idle_timeout_seconds: Seconds | None = None
    """Seconds after which an idle shadow pod is deleted and its cards are free again; by default as
    in the pool."""
