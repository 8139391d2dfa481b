"""Events about what lasts are posted again before API servers forget them."""

from mizar_operator.announcements import ANNOUNCED_FOR_S, Announcements

WAITS, LACKS = ("uid-a", "NoCardFree"), ("uid-b", "QuotaExceeded")
HOUR = 3600.0
"""How long API servers keep events, unless they are told otherwise."""


def test_what_still_holds_is_posted_again_before_its_event_expires() -> None:
    now = 0.0
    announcements = Announcements(lambda: now)
    announcements.note([WAITS])
    now = ANNOUNCED_FOR_S - 1
    announcements.note([LACKS])
    assert announcements.known({"uid-a", "uid-b"}) == {WAITS, LACKS}
    now = ANNOUNCED_FOR_S
    assert announcements.known({"uid-a", "uid-b"}) == {LACKS}
    assert ANNOUNCED_FOR_S < HOUR


def test_what_is_gone_is_forgotten() -> None:
    announcements = Announcements(lambda: 0.0)
    announcements.note([WAITS, LACKS])
    assert announcements.known({"uid-b"}) == {LACKS}
    assert announcements.known({"uid-a", "uid-b"}) == {LACKS}
