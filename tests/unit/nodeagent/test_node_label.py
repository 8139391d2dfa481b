"""The label by which shadow pods exclude the agent's node."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from mizar_core.names import LABEL_NODE
from mizar_kube.errors import Unavailable
from mizar_nodeagent import node_label
from mizar_nodeagent.node_label import NodeLabel


class Api:
    """A node, and what is written to it."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels
        self.reads = 0
        self.error: Exception | None = None

    async def get(self, ref: Any, cached: bool) -> dict[str, Any]:
        assert cached
        self.reads += 1
        if self.error:
            raise self.error
        return {"metadata": {"labels": dict(self.labels)}}

    async def patch_merge(self, ref: Any, body: Any, subresource: str) -> None:
        assert subresource == "status"
        assert list(body) == ["metadata"] and list(body["metadata"]) == ["labels"]
        self.labels |= body["metadata"]["labels"]


def made(api: Api, node: str = "n1") -> NodeLabel:
    return NodeLabel(api, node, lambda: 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [{}, {LABEL_NODE: "n2"}, {LABEL_NODE: "n1"}])
async def test_the_node_gets_its_name(before: dict[str, str]) -> None:
    api = Api(**before)
    await made(api).write()
    assert api.labels == {LABEL_NODE: "n1"}


async def test_it_is_written_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    api, slept = Api(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        api.error = None
        if len(slept) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(node_label.asyncio, "sleep", sleep)
    api.error = Unavailable("away")
    with suppress(asyncio.CancelledError):
        await made(api).run()
    assert api.labels == {LABEL_NODE: "n1"}
    assert slept == [node_label.RETRY_S, node_label.EVERY_S]


async def test_a_name_that_is_no_label_is_not_written() -> None:
    api = Api()
    await made(api, f"{'n' * 64}.example.com").run()
    assert not api.reads and not api.labels
