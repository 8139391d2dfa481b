"""Keeps how much memory each container may hold, also after its limit was lowered."""

from __future__ import annotations

from collections.abc import Collection

from mizar_nodeagent.audit.compare import SlotCard
from mizar_nodeagent.regions.layout import BYTES_MAX


class PermittedMemory:
    """The bytes of each card that containers may hold: their limit, or what they held when it was
    lowered until they give that back. Since a tenant can write any number into its account, the
    account permits no more than the agent has permitted before.

    `earlier`: names of the slots that an earlier run of the agent left. Their limits may have been
    lowered then, so their first account is believed.
    """

    def __init__(self, earlier: Collection[str]) -> None:
        self._earlier = frozenset(earlier)
        self._permitted: dict[SlotCard, int] = {}

    def update(self, key: SlotCard, limit: int, charged: int | None) -> int:
        """The bytes that the container may hold now; 0 if it has lost the card. `charged`: bytes
        that its account says; None if that cannot be read."""
        first = BYTES_MAX if key[0] in self._earlier else limit
        before = self._permitted.get(key, first)
        held = before if charged is None else min(before, charged)
        self._permitted[key] = max(limit, held)
        return self._permitted[key] if limit else 0

    def keep_only(self, slots: Collection[str]) -> None:
        """Forget all slots but those with these names."""
        self._permitted = {key: size for key, size in self._permitted.items() if key[0] in slots}
