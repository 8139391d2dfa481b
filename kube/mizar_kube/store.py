"""The store of a local copy: keeps the objects, and calls listeners for changes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from mizar_kube.kinds import Object
from mizar_kube.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-wide object is the empty string."""

Trim = Callable[[Object], T | None]
"""Returns the part of an object to keep; None if nothing of it is of interest."""

OnChange = Callable[[T | None, T | None], None]
"""Called with (old, new): old is None for a new object, new is None for a deleted one."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    version: str
    value: T


def key_of(obj: Object) -> Key:
    """The key of an object as the API server sent it."""
    meta = obj["metadata"]
    return meta.get("namespace") or "", meta["name"]


def is_newer(version: str, than: str) -> bool:
    """Whether a resource version is newer than another; False if one is not a number, since these
    cannot be compared."""
    return version.isdigit() and than.isdigit() and int(version) > int(than)


def _version(meta: Object) -> str:
    return str(meta.get("resourceVersion", ""))


class Store(Generic[T]):
    """Trimmed objects by key. Listeners are called once for each change of what is kept.

    For an object that was deleted and created again under its name, they are called with a deletion
    and a creation. An object for which `trim` raises is not kept; `unreadable` has its metadata.
    """

    def __init__(self, trim: Trim[T]) -> None:
        self.unreadable: dict[Key, Object] = {}
        self._trim = trim
        self._entries: dict[Key, _Entry[T]] = {}
        self._listeners: list[OnChange[T]] = []

    def listen(self, listener: OnChange[T]) -> None:
        """Call `listener` on every change from now on. It must be quick and must not fail: its
        exceptions are logged, and it is not called again for that change."""
        self._listeners.append(listener)

    def get(self, key: Key) -> T | None:
        """The part of the object that is kept, or None."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def values(self) -> list[T]:
        """All that is kept, in no particular order; the list is the caller's."""
        return [entry.value for entry in self._entries.values()]

    def items(self) -> list[tuple[Key, T]]:
        """All keys with the parts that are kept; the list is the caller's."""
        return [(key, entry.value) for key, entry in self._entries.items()]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, obj: Object, even_older: bool = False) -> bool:
        """Store the object, unless a newer version of it is known (with `even_older`, store it
        anyway). Returns whether that changed what is kept."""
        key, version = key_of(obj), _version(obj["metadata"])
        if self._knows_newer(key, version) and not even_older:
            return False
        before = self.get(key)
        try:
            entry = self._entry(obj, version)
        except Exception:
            self._set_unreadable(obj)
            return before is not None
        self.unreadable.pop(key, None)
        if entry is None or self._replaced(key, entry.uid):
            self.drop(key)
        if entry is not None:
            self._set(key, entry)
        return before != self.get(key)

    def drop(self, key: Key, version: str = "") -> None:
        """Remove the object, unless a newer version than `version`, that of its deletion, is
        known."""
        if self._knows_newer(key, version):
            return
        self.unreadable.pop(key, None)
        if (entry := self._entries.pop(key, None)) is not None:
            self._tell(entry.value, None)

    def drop_uid(self, key: Key, uid: str) -> None:
        """Remove the object if it has that UID; another one of its name stays."""
        if not self._replaced(key, uid):
            self.drop(key)

    def keep_only(self, keys: Iterable[Key], as_of: str = "") -> list[str]:
        """Remove all other objects, except those newer than the version `as_of`. Returns the UIDs
        of the readable ones among those removed."""
        found = []
        for key in sorted({*self._entries, *self.unreadable} - set(keys)):
            if self._knows_newer(key, as_of):
                continue
            if (entry := self._entries.get(key)) is not None:
                found.append(entry.uid)
            self.drop(key)
        return found

    def _knows_newer(self, key: Key, version: str) -> bool:
        old, meta = self._entries.get(key), self.unreadable.get(key, {})
        return is_newer(old.version if old else _version(meta), version)

    def _replaced(self, key: Key, uid: str) -> bool:
        old = self._entries.get(key)
        return old is not None and old.uid != uid

    def _set(self, key: Key, entry: _Entry[T]) -> None:
        old = self._entries.get(key)
        self._entries[key] = entry
        if old is None:
            self._tell(None, entry.value)
        elif old.value != entry.value:
            self._tell(old.value, entry.value)

    def _entry(self, obj: Object, version: str) -> _Entry[T] | None:
        value = self._trim(obj)
        uid = str(obj["metadata"].get("uid", ""))
        return None if value is None else _Entry(uid, version, value)

    def _set_unreadable(self, obj: Object) -> None:
        """Keep only the metadata: one unreadable object must not stop the copy of all others."""
        key, meta = key_of(obj), obj["metadata"]
        if key not in self.unreadable or _version(self.unreadable[key]) != _version(meta):
            log.exception(
                "an object cannot be read", kind=obj.get("kind"), namespace=key[0], name=key[1]
            )
        self.unreadable[key] = meta
        if (entry := self._entries.pop(key, None)) is not None:
            self._tell(entry.value, None)

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            try:
                listener(old, new)
            except Exception:
                log.exception("a listener failed")


class StoreReader(Generic[T]):
    """The part of a local copy that its users read; a subclass puts the objects into the store."""

    def __init__(self, trim: Trim[T]) -> None:
        self._store = Store(trim)

    def on_change(self, listener: OnChange[T]) -> None:
        """Call `listener(old, new)` on every change from now on, and at once, as (None, value), for
        each object that is known already."""
        for value in self._store.values():
            listener(None, value)
        self._store.listen(listener)

    def get(self, name: str, namespace: str = "") -> T | None:
        """The part of one object that is kept, or None."""
        return self._store.get((namespace, name))

    def values(self) -> list[T]:
        """All that is kept, in no particular order; the list is the caller's."""
        return self._store.values()

    @property
    def unreadable(self) -> Mapping[Key, Object]:
        """The metadata of objects that exist, but for which `trim` failed."""
        return self._store.unreadable

    def __len__(self) -> int:
        return len(self._store)
