"""When what was written is read again."""

from mizar_nodeagent.read_again import READ_AGAIN_S, ReadAgain


def test_each_is_due_every_five_minutes_or_so() -> None:
    now, chance = [0.0], [0.0]
    again: ReadAgain[str] = ReadAgain(lambda: now[0], lambda: chance[0])
    assert again.due(["a"]) == []
    chance[0] = 1.0
    assert again.due(["a", "b"]) == []
    now[0] = 0.75 * READ_AGAIN_S
    assert again.due(["a", "b"]) == ["a"]
    assert again.due(["a", "b"]) == []
    now[0] = 1.25 * READ_AGAIN_S
    assert again.due(["a", "b"]) == ["b"]
    now[0] = 2 * READ_AGAIN_S
    assert again.due(["a", "b"]) == ["a"]


def test_one_that_went_and_came_starts_anew() -> None:
    now = [0.0]
    again: ReadAgain[str] = ReadAgain(lambda: now[0], lambda: 0.5)
    for now[0], keys in ((0.0, ["a"]), (1.0, []), (READ_AGAIN_S, ["a"])):
        assert again.due(keys) == []
    now[0] = 2 * READ_AGAIN_S
    assert again.due(["a"]) == ["a"]
