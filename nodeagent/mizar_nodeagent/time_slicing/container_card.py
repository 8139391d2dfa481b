"""One container on one card: whether it wants GPU time, and what it is granted."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Final

from mizar_core.models import ComputeMode
from mizar_core.quantities import WHOLE_CARD
from mizar_core.time_grants import Sharer, TimeGrant, allowed_share
from mizar_nodeagent.audit.unaccounted_memory import Unaccounted
from mizar_nodeagent.regions import layout, limits_file
from mizar_nodeagent.regions.layout import Limits, LimitsLive, UsageCard, UsageHead
from mizar_nodeagent.regions.usage_snapshot import LedgerWords, takes_memory
from mizar_nodeagent.time_slicing.container_files import CardWords, ContainerFiles, Place
from mizar_nodeagent.time_slicing.usage_estimate import UsageEstimate

BUSY_NS: Final = 50_000_000
"""An idle container becomes busy when it has asked for GPU time within these nanoseconds."""
STILL_BUSY_NS: Final = 100_000_000
"""A busy container becomes idle when it has not asked for GPU time for these nanoseconds. Longer
than BUSY_NS, since every change moves the windows of all containers of the card."""
FUTURE_NS: Final = 1_000_000_000
"""Nanoseconds by which the time of the last request may lie in the future: a waiting shim may write
until when it waits, and none waits longer than this."""
STEP_NS: Final = 50_000
"""The length of the longest piece of work is rounded up to a multiple of these nanoseconds."""
REVOKED_NS: Final = 2_000_000_000
"""Nanoseconds for which a borrower stays paused after an owner of the card became active: by then,
the reclaim has stopped it."""
LONGEST_NS: Final = 50_000_000
"""Windows are planned for pieces of work of at most these nanoseconds: longer windows would delay
other containers."""


class ContainerCard:
    """One container on one card.

    Set by each `observe`: `busy`: the container wants GPU time. `longest_ns`: its longest recent
    piece of work. `new_code`: since the previous observation it used code for the first time, or
    memory of its dead processes was given back. `is_awake`: it has a share of the card's time, and
    wants time or has changed its memory since the previous observation. `revoked`: it must stop,
    since an owner became active.

    Fixed: `borrows`: it has no share. `in_notice`: it borrows, and active owners do not pause it.
    """

    def __init__(
        self,
        files: ContainerFiles,
        index: int,
        mode: ComputeMode,
        share: int,
        priority: int,
        in_notice: bool = False,
    ):
        self.name = files.container.name
        self.mode: ComputeMode = mode
        self.busy = False
        self.longest_ns = 0
        self.new_code = False
        self.is_awake = False
        self.borrows = mode == "Soft" and not share
        self.in_notice = in_notice and self.borrows
        self.revoked = False
        self._revoked_until = 0
        self._code = 0, 0
        self._memory: LedgerWords | None = None
        self._raw = b""
        self._estimate = UsageEstimate()
        self._written: TimeGrant | None = None
        self._share = self._own_rate = share
        self._priority = priority
        self._files = files
        card = UsageHead.cards.offset + index * ctypes.sizeof(UsageCard)
        self._usage = card
        self._live = Limits.live.offset + index * ctypes.sizeof(LimitsLive)

    @property
    def sharer(self) -> Sharer:
        """The container as input for planning the card's time."""
        written = self._written or TimeGrant()
        return Sharer(
            name=self.name,
            # In its notice period a borrower takes no part in the division of the time.
            mode="None" if self.in_notice else self.mode,
            share=self._share,
            priority=self._priority,
            busy=self.busy and not self.revoked,
            longest_ns=self.longest_ns,
            grant=written,
            need=self._estimate.need,
        )

    @property
    def demand(self) -> tuple[bool, int | None, bool]:
        """The facts on which the grants of the card's containers depend."""
        return self.busy, self._estimate.need, self.revoked

    def observe(self, now: int) -> None:
        """Read from the usage file whether the container wants GPU time, and in pieces of which
        length. `now`: nanoseconds of CLOCK_MONOTONIC."""
        raw = self._files.card_bytes(self._usage)
        self.revoked = now < self._revoked_until
        if raw == self._raw and not self.busy:
            self.new_code = self.is_awake = False
        else:
            self._raw = raw
            self._take(now, CardWords.of(raw))

    def _take(self, now: int, usage: CardWords) -> None:
        code = usage.settled, usage.code_uses
        self.new_code, self._code = code != self._code, code
        silence = STILL_BUSY_NS if self.busy else BUSY_NS
        self.busy = -FUTURE_NS < now - usage.wanted_at < silence
        # Rounded up, so that small variations do not cause a new plan.
        self.longest_ns = min(-(-usage.longest_ns // STEP_NS) * STEP_NS, LONGEST_NS)
        took = self._has_taken(usage.memory)
        self._memory = usage.memory
        self.is_awake = self._share > 0 and (self.busy or took)
        if self.busy:
            self._estimate.add(now, usage.charged_ns, usage.waited_ns, self._own_rate)
        else:
            self._estimate.pause()

    def has_woken(self, now: int) -> bool:
        """Whether `observe` would find the container awake, given that it was idle at the last
        observation. Cheaper than `observe`. `now`: nanoseconds of CLOCK_MONOTONIC."""
        memory, wanted_at = self._files.activity(self._usage)
        if self._has_taken(memory):
            return self._share > 0
        # What it takes from now on is compared with what it has now.
        self._memory = memory
        return self._share > 0 and -FUTURE_NS < now - wanted_at < BUSY_NS

    def _has_taken(self, memory: LedgerWords) -> bool:
        return self._memory is not None and takes_memory(self._memory, memory)

    @property
    def place(self) -> Place:
        """The place in the usage file that `has_woken` reads."""
        return self._files.place(self._usage)

    def revoke(self, now: int) -> None:
        """Pause the container for REVOKED_NS, whatever it is granted, since an owner of the card is
        active. `now`: nanoseconds of CLOCK_MONOTONIC."""
        self._revoked_until = now + REVOKED_NS
        self.revoked = True

    def beat(self) -> None:
        """Increment the heartbeat by which the shim sees that the agent is alive."""
        self._files.increment(self._live + LimitsLive.beat.offset)

    def set_unaccounted(self, unaccounted: Unaccounted) -> None:
        """Write how much memory the container's own account leaves out. The shim stops reserving
        memory for the code uses that this figure includes."""
        self._files.put_long(self._live + LimitsLive.unaccounted_bytes.offset, unaccounted.bytes)
        self._files.put_long(self._live + LimitsLive.code_seen.offset, unaccounted.code_uses)

    def write(self, grant: TimeGrant) -> None:
        """Write the grant if it differs from the last one, and wake the processes that wait for GPU
        time. A revoked container is paused instead; one in its notice may use the whole card."""
        if self.in_notice:
            grant = TimeGrant(spare_share=WHOLE_CARD)
        elif self.revoked:
            grant = TimeGrant(paused=True)
        if grant == self._written:
            return
        files, live = self._files, self._live
        files.put(live + LimitsLive.spare_share.offset, grant.spare_share)
        files.put(live + LimitsLive.paused.offset, int(grant.paused))
        files.put(live + LimitsLive.active_weight.offset, grant.active_weight)
        files.put_long(live + LimitsLive.window.offset, grant.window.word if grant.window else 0)
        files.wake(live + LimitsLive.wake.offset)
        self._written = grant
        self._own_rate = allowed_share(self.sharer, replace(grant, spare_share=0))


def container_cards(
    files: ContainerFiles, found: Limits, notices: bool
) -> dict[str, ContainerCard]:
    """The container on each card in its limits, by the card's UUID. `notices`: whether a notice in
    the limits counts, so that the container is not paused there."""
    cards = found.cards[: min(found.card_count, layout.CARD_MAX)]
    return {
        card.uuid.decode(errors="replace"): ContainerCard(
            files,
            index,
            limits_file.COMPUTE_MODE_NAMES.get(card.compute_mode, "None"),
            card.core_share,
            card.priority,
            in_notice=notices and card.priority == layout.PRIORITY_NOTICE,
        )
        for index, card in enumerate(cards)
    }
