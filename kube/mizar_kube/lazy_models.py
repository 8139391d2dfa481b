"""Keeps kubernetes_asyncio from importing its models and its API classes, over 800 modules and 32
MiB of memory in each program, none of which Mizar uses. It must be imported before
kubernetes_asyncio. Access to one of those classes still works, and imports all of them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "kubernetes_asyncio.client"
USED: Final = {
    "ApiClient": "api_client",
    "ApiException": "exceptions",
    "Configuration": "configuration",
}
"""The names that are imported from the package one by one, each with its module."""


class _LazyPackage(ModuleType):
    """A package whose `__init__` runs only when a name is accessed that is neither in `used` nor a
    module of the package."""

    def __init__(self, name: str, folder: Path, used: dict[str, str]) -> None:
        super().__init__(name)
        self.__path__ = [str(folder)]
        self._used = used

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if module := self._used.get(name):
            return getattr(importlib.import_module(f"{self.__name__}.{module}"), name)
        if (Path(self.__path__[0]) / f"{name}.py").exists():
            return importlib.import_module(f"{self.__name__}.{name}")
        self._load()
        return self.__dict__[name] if name in self.__dict__ else _refuse(name)

    def _load(self) -> None:
        init = Path(self.__path__[0]) / "__init__.py"
        spec = importlib.util.spec_from_file_location(self.__name__, init)
        assert spec is not None and spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)


def _refuse(name: str) -> Any:
    raise AttributeError(name)


def install() -> None:
    """Put lazy packages in place of kubernetes_asyncio's client and models, unless these were
    imported already."""
    found = importlib.util.find_spec("kubernetes_asyncio")
    if PACKAGE in sys.modules or found is None or not found.submodule_search_locations:
        return
    folder = Path(found.submodule_search_locations[0]) / "client"
    client = sys.modules[PACKAGE] = _LazyPackage(PACKAGE, folder, USED)
    models = _LazyPackage(f"{PACKAGE}.models", folder / "models", {})
    sys.modules[models.__name__] = models
    client.models = models  # type: ignore[attr-defined]
