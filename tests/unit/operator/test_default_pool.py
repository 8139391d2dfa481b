"""The default pool, which the operator creates itself."""

import asyncio
from typing import Any

import pytest

from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, KubeError, Unavailable
from mizar_kube.kinds import Object
from mizar_operator import default_pool


class Api:
    """Answers each call with what a test says, and remembers what was to be created."""

    def __init__(self, *answers: KubeError) -> None:
        self.created: list[Object] = []
        self._answers = list(answers)

    async def create(self, obj: Object, **_: Any) -> Object:
        self.created.append(obj)
        if self._answers:
            raise self._answers.pop(0)
        return obj


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, without waiting for them."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


async def test_it_is_made_with_the_installers_spec(pauses: list[float]) -> None:
    api = Api()
    await default_pool.ensure(api, {"idleTimeoutSeconds": 60})  # type: ignore[arg-type]
    (made,) = api.created
    assert (made["kind"], made["metadata"]["name"]) == ("GPUPool", "default")
    assert made["spec"] == {"idleTimeoutSeconds": 60}
    assert pauses == []


async def test_it_is_tried_until_the_webhook_answers(pauses: list[float]) -> None:
    api = Api(*(Unavailable("failed calling webhook") for _ in range(7)))
    await default_pool.ensure(api, {})  # type: ignore[arg-type]
    assert len(api.created) == 8
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize("answer", [AlreadyExists, Forbidden, Invalid])
async def test_what_is_there_or_refused_is_left(
    answer: type[KubeError], pauses: list[float]
) -> None:
    api = Api(answer("no"))
    await default_pool.ensure(api, {})  # type: ignore[arg-type]
    assert (len(api.created), pauses) == (1, [])
