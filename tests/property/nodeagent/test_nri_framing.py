"""NRI's frames and ttrpc's messages, however a socket cuts them."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mizar_nodeagent.errors import RuntimeRefused
from mizar_nodeagent.nri import framing
from mizar_nodeagent.nri.framing import Frames, Kind, Message, Messages

MESSAGES = st.lists(
    st.builds(
        Message, st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.binary(max_size=10_000)
    ),
    max_size=5,
)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes, again and again."""
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


@given(MESSAGES, MESSAGES, st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.randoms())
def test_what_is_sent_arrives(first, second, sizes, random) -> None:  # type: ignore[no-untyped-def]
    """Messages of two connections, mixed on one socket, which cuts them anywhere."""
    sent = {1: list(first), 2: list(second)}
    turns = [1] * len(first) + [2] * len(second)
    random.shuffle(turns)
    rest = {one: iter(messages) for one, messages in sent.items()}
    data = b"".join(framing.frames(one, framing.message(next(rest[one]))) for one in turns)

    frames, parsers = Frames(), {1: Messages(), 2: Messages()}
    got: dict[int, list[Message]] = {1: [], 2: []}
    for piece in cut(data, sizes):
        for connection, payload in frames.feed(piece):
            got[connection] += parsers[connection].feed(payload)
    assert got == sent


@given(st.binary(max_size=30_000))
@example(bytes(10_000))
def test_no_frame_is_longer_than_the_runtime_reads(data: bytes) -> None:
    got = list(Frames().feed(framing.frames(1, data)))
    assert all(len(payload) <= 4096 for _, payload in got)
    assert b"".join(payload for _, payload in got) == data


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_nonsense_is_refused_or_waited_for(pieces: list[bytes]) -> None:
    """Whatever bytes come, nothing but RuntimeRefused is raised."""
    frames, messages = Frames(), Messages()
    try:
        for piece in pieces:
            for _, payload in frames.feed(piece):
                list(messages.feed(payload))
    except RuntimeRefused:
        pass


@given(st.integers(4194305, 2**32 - 11))
def test_too_long_is_refused_before_it_has_come(length: int) -> None:
    """No sender can make the agent keep gigabytes: the header is enough."""
    for header, parser in (
        (struct.pack(">II", 1, length + 10), Frames()),
        (struct.pack(">IIBB", length, 1, 1, 0), Messages()),
    ):
        with pytest.raises(RuntimeRefused, match="bytes"):
            list(parser.feed(header))
