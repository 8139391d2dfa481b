"""Reads objects live from the API server, bypassing the caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.kinds import POD, Object, Ref

T = TypeVar("T")


async def find(client: KubeClient, ref: Ref) -> Object | None:
    """The object; None if there is none. Raises KubeError where that is not known."""
    try:
        return await client.get(ref)
    except NotFound:
        return None


async def is_there(client: KubeClient, ref: Ref, uid: str) -> bool:
    """Whether the object is there and has this UID; any UID matches if `uid` is empty. The answer
    tells what a Conflict means: the object was changed, or another one has its name now. Raises
    KubeError."""
    found = await find(client, ref)
    return found is not None and uid in ("", found["metadata"]["uid"])


async def views_on(
    client: KubeClient, node: str, view: Callable[[Object], T], *, cached: bool = False
) -> list[T]:
    """The result of `view` for each pod that is bound to the node. The pods themselves, which may
    be large, are read page by page; if `cached`, from the API server's cache. Raises KubeError."""
    found = list[T]()
    pages = client.list_pages(POD, field_selector=f"spec.nodeName={node}", cached=cached)
    async with aclosing(pages):
        async for page in pages:
            found += map(view, page.items)
    return found
