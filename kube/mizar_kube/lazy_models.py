"""Keeps kubernetes_asyncio from importing its models and its API classes, over 800 modules and 32
MiB of memory in each program, none of which Mizar uses. To be imported before kubernetes_asyncio;
whoever asks for one of those classes all the same gets it, and all others with it."""

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
"""What is imported from the package's modules one by one."""


class _LazyPackage(ModuleType):
    """A package whose `__init__` runs when a name is asked for that is not in `used`."""

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
    """Take the packages' places, unless they were imported already."""
    found = importlib.util.find_spec("kubernetes_asyncio")
    if PACKAGE in sys.modules or found is None or not found.submodule_search_locations:
        return
    folder = Path(found.submodule_search_locations[0]) / "client"
    client = sys.modules[PACKAGE] = _LazyPackage(PACKAGE, folder, USED)
    models = _LazyPackage(f"{PACKAGE}.models", folder / "models", {})
    sys.modules[models.__name__] = models
    client.models = models  # type: ignore[attr-defined]
