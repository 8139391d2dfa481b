"""Shadow pods, devices and cards as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from mizar_core.card import Card
from mizar_core.carve import Carve
from mizar_core.device_ids import DeviceID
from mizar_core.models import Profile

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
prefixes = st.lists(labels, min_size=2, max_size=3).map(".".join)
profiles = st.integers(min_value=1, max_value=9999)
devices = st.builds(DeviceID, labels, labels, st.integers(min_value=0, max_value=9999))
shapes = st.tuples(st.integers(1, 8), st.integers(1, 4)).map(
    lambda per_card_and_cards: Profile(
        devices=per_card_and_cards[0] * per_card_and_cards[1], cards=per_card_and_cards[1]
    )
)
scalings = st.sampled_from(["0.1", "0.5", "1", "1.3", "2", "16"])
memories = st.integers(min_value=2**30, max_value=2**38)


@st.composite
def carves(draw: st.DrawFn, namespace: str = "team-a") -> Carve:
    """Any carve that a pool can ask for."""
    shape = draw(shapes)
    return Carve(
        resource=f"{namespace}.mizar.share/gpu.{shape.devices}",
        devices=shape.devices,
        cards=shape.cards,
        memory=draw(st.none() | memories),
        memory_scaling=draw(scalings),
        core_scaling=draw(scalings),
        pool="default",
        quota="quota",
    )


def cards_of(carve: Carve, prefix: str = "GPU", memory: int = 16 << 30) -> tuple[Card, ...]:
    """As many cards as the carve needs, of unequal memory."""
    return tuple(Card(f"{prefix}-{at}", memory + at) for at in range(carve.cards))
