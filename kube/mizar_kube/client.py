"""A small client of the Kubernetes API: plain dicts in and out, typed errors."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kubernetes_asyncio.client import Configuration

from mizar_kube import credentials
from mizar_kube.api_calls import ApiCall, ApiCalls, Params
from mizar_kube.errors import ConfigError, TooLarge, Unavailable, error_from_status
from mizar_kube.kinds import Kind, Object, Ref, kind_of, ref_of

DEFAULT_TIMEOUT_S = 15.0
"""Seconds that a call may take if its caller does not say otherwise."""
PAGE_SIZE = 500
"""Objects of a page, as for Kubernetes' own clients."""
PAGE_BYTES = 4 << 20
"""The most bytes of a page with several objects: parsed, a page may take ten times as much memory.
A pod may have more than a MiB, so any user who may create pods could exhaust the memory of every
program that lists 500 of them at once."""
WATCH_TIMEOUT_S = 240
"""Seconds after which the API server is asked to end a watch."""
WATCH_SLACK_S = 15.0
"""Seconds beyond its timeout in which a watch must send something or end; they cover a slow API
server."""
WATCH_QUIET_S = 150.0
"""Seconds without an event after which a watch counts as broken and ends: API servers send a
bookmark about once a minute."""

# Inside KubeClient, `list` is the method.
Objects = list[Object]


@dataclass(frozen=True)
class Listing:
    """The objects of one list call (or page), and the resource version that a watch continues
    from."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True)
class WatchEvent:
    """A change: `type` is ADDED, MODIFIED, DELETED, or BOOKMARK (only a version to continue
    from)."""

    type: str
    object: Object


class KubeClient:
    """Calls of the API server. `async with await KubeClient.connect() as client: ...`

    Every call ends within its timeout and raises an error of `mizar_kube.errors`; none is retried
    here, except once with a fresh token after a 401.
    """

    def __init__(self, configuration: Configuration, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self.configuration = configuration
        self._calls = ApiCalls(configuration, timeout)

    @classmethod
    async def connect(
        cls, kubeconfig: str | Path | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Self:
        """A client for the given kubeconfig, or for the API server that `credentials.configuration`
        finds without one.

        Raises ConfigError if no API server is known or its credentials cannot be used; makes no
        call yet.
        """
        found = await credentials.configuration(kubeconfig)
        try:
            return cls(found, timeout)
        except OSError as error:
            # ssl.SSLError is one.
            raise ConfigError(f"cannot use the certificates for {found.host}: {error}") from error

    async def close(self) -> None:
        """Close all connections. End the tasks that watch first: they are not notified."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def get(self, ref: Ref, *, cached: bool = False, timeout: float | None = None) -> Object:
        """The object as the API server has it now or, if `cached`, as the API server's cache has
        it, which may be a moment behind and spares etcd: for objects that every node reads again
        and again. Raises NotFound."""
        params = {"resourceVersion": "0"} if cached else None
        return await self.request("GET", ref.path, params=params, timeout=timeout)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = PAGE_SIZE,
        timeout: float | None = None,
    ) -> Listing:
        """All objects that match, read in pages; `timeout` bounds each page. Raises Gone when
        the pages take so long that the first is forgotten."""
        items: Objects = []
        version = ""
        pages = self.list_pages(
            kind,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
            timeout=timeout,
        )
        async for page in pages:
            items += page.items
            version = page.resource_version
        return Listing(items, version)

    async def list_pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = PAGE_SIZE,
        cached: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[Listing, None]:
        """The pages of a list, one by one, so that a caller can drop what it doesn't need. Pages
        that would be larger than PAGE_BYTES have fewer objects; 0 asks for all in one page.
        `cached`: as the API server's cache has them, which may be a moment behind and ignores the
        page size. For the pods of a node the cache has an index, while older API servers read all
        pods from etcd for each other list."""
        params, size = _selectors(label_selector, field_selector), page_size
        if cached:
            params["resourceVersion"] = "0"
        while True:
            call = ApiCall("GET", kind.path(namespace), params | {"limit": str(size)})
            try:
                body = await self._calls.object(call, timeout, PAGE_BYTES if size != 1 else None)
            except TooLarge:
                size = max(1, (size or PAGE_SIZE) // 4)
                continue
            meta = body.get("metadata") or {}
            if "resourceVersion" not in meta:
                raise Unavailable(f"{call}: the response is not a list")
            yield Listing(_named(body.pop("items", None) or [], kind), str(meta["resourceVersion"]))
            if not meta.get("continue"):
                return
            params["continue"] = str(meta["continue"])
            size = min(2 * size, page_size or PAGE_SIZE)

    async def create(
        self,
        obj: Object,
        *,
        field_manager: str = "",
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Object:
        """Create the object; a dry run only checks whether that is allowed. Returns the object as
        created. Raises AlreadyExists, Invalid, Forbidden."""
        kind, namespace = kind_of(obj), obj["metadata"].get("namespace")
        params = {"fieldManager": field_manager} if field_manager else {}
        if dry_run:
            params["dryRun"] = "All"
        return await self.request(
            "POST", kind.path(namespace), params=params, body=obj, timeout=timeout
        )

    async def replace(
        self, obj: Object, *, subresource: str = "", timeout: float | None = None
    ) -> Object:
        """Put the whole object in place of the old one; its metadata.resourceVersion, if it has
        one, is a precondition (Conflict when the object has changed since)."""
        path = _path(ref_of(obj), subresource)
        return await self.request("PUT", path, body=obj, timeout=timeout)

    async def patch_merge(
        self, ref: Ref, patch: Object, *, subresource: str = "", timeout: float | None = None
    ) -> Object:
        """A JSON merge patch (RFC 7386): None removes a key, lists are replaced as a whole."""
        return await self._patch(ref, "merge-patch", patch, {}, subresource, timeout)

    async def patch_json(
        self,
        ref: Ref,
        patch: Objects,
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> Object:
        """A JSON patch (RFC 6902); a `test` that fails raises Invalid."""
        return await self._patch(ref, "json-patch", patch, {}, subresource, timeout)

    async def apply(
        self,
        obj: Object,
        *,
        field_manager: str,
        subresource: str = "",
        timeout: float | None = None,
    ) -> Object:
        """Server-side apply: the fields in `obj` become this manager's; those it owned before and
        doesn't name now are removed. Fields that others own are taken from them."""
        params = {"fieldManager": field_manager, "force": "true"}
        return await self._patch(ref_of(obj), "apply-patch", obj, params, subresource, timeout)

    async def delete(
        self,
        ref: Ref,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str = "",
        timeout: float | None = None,
    ) -> Object:
        """Delete the object, only if it still has that UID and version (Conflict otherwise).

        `propagation`: Background, Foreground or Orphan. Raises NotFound when it is gone already.
        """
        body = _delete_options(uid, resource_version, grace_seconds, propagation)
        return await self.request("DELETE", ref.path, body=body or None, timeout=timeout)

    async def evict(
        self,
        ref: Ref,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> Object:
        """Evict the pod, only if it still has that UID (Conflict otherwise). `grace_seconds`: the
        pod's own if None. Raises Unavailable with status 429 while a PodDisruptionBudget does not
        allow it, with status 500 if several budgets select the pod, NotFound."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "deleteOptions": _delete_options(uid, grace_seconds=grace_seconds),
        }
        return await self.request("POST", _path(ref, "eviction"), body=body, timeout=timeout)

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = WATCH_TIMEOUT_S,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes after `resource_version`, until the server ends the watch after timeout_seconds.

        Raises Gone when the version is too old (list again), Unavailable when there is no answer,
        Interrupted when the connection breaks later, Silent when it brings nothing for
        WATCH_QUIET_S. Never yields an incomplete line.
        """
        params = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        }
        call = ApiCall("GET", kind.path(namespace), params)
        quiet = min(timeout_seconds + WATCH_SLACK_S, WATCH_QUIET_S)
        lines = self._calls.lines(call, quiet)
        async with aclosing(lines):
            async for line in lines:
                yield _event(line, kind, call)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        timeout: float | None = None,
    ) -> Object:
        """Any call that is answered with one JSON object, for uses that no other method covers."""
        return await self._calls.object(ApiCall(method, path, params or {}, body), timeout)

    async def _patch(
        self, ref: Ref, how: str, body: Any, params: Params, subresource: str, timeout: float | None
    ) -> Object:
        # JSON is YAML, so an apply patch may be sent as JSON.
        content_type = f"application/{how}+{'yaml' if how == 'apply-patch' else 'json'}"
        call = ApiCall("PATCH", _path(ref, subresource), params, body, content_type)
        return await self._calls.object(call, timeout)


def _selectors(label_selector: str, field_selector: str) -> Params:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def _delete_options(
    uid: str,
    resource_version: str = "",
    grace_seconds: int | None = None,
    propagation: str = "",
) -> Object:
    wanted = {"uid": uid, "resourceVersion": resource_version}
    preconditions = {key: value for key, value in wanted.items() if value}
    options = {
        "preconditions": preconditions or None,
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation or None,
    }
    return {key: value for key, value in options.items() if value is not None}


def _path(ref: Ref, subresource: str) -> str:
    return f"{ref.path}/{subresource}" if subresource else ref.path


def _named(items: list[Object], kind: Kind) -> list[Object]:
    """Add apiVersion and kind to the items of a list, which leaves them out."""
    for item in items:
        item.setdefault("apiVersion", kind.api_version)
        item.setdefault("kind", kind.name)
    return items


def _event(line: bytes, kind: Kind, call: ApiCall) -> WatchEvent:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Unavailable(f"{call}: the watch did not send JSON: {error}") from error
    if not isinstance(event, dict) or not {"type", "object"} <= event.keys():
        raise Unavailable(f"{call}: the watch sent no event")
    obj = event["object"]
    if event["type"] == "ERROR":
        raise error_from_status(int(obj.get("code") or 500), obj, str(call))
    _named([obj], kind)
    return WatchEvent(event["type"], obj)
