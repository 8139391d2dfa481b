"""The tree of core's exceptions. Each has a sentence that says what to do next."""

from __future__ import annotations


class MizarError(Exception):
    """Anything that Mizar's core refuses. `str(error)` is meant to be shown to users."""


class NameRefused(MizarError, ValueError):
    """A name (of a resource, a namespace, a pool) cannot be used where it was given."""


class DeviceIDRefused(MizarError, ValueError):
    """A string is no device ID, or a device does not exist in the profile it claims."""


class QuantityRefused(MizarError, ValueError):
    """A string is no Kubernetes quantity, or no number that Mizar accepts."""


class CarveRefused(MizarError, ValueError):
    """Cards cannot be carved as asked; nothing may run on them unlimited, so nothing runs."""


class PlacementRefused(MizarError, ValueError):
    """The request for a preferred allocation contradicts itself."""


class SpotRulesRefused(MizarError):
    """The text is no set of rules for spot cards."""
