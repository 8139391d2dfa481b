"""Describes errors in settings by the flag, variable or key that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pydantic import AliasChoices, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsError

Path = tuple[str, ...]
"""The name of a setting, after those of the sections that it is in."""


class SettingsRefused(Exception):
    """The settings can't be used; the message names each flag, variable or key that is wrong."""


def describe_errors(
    kind: type[BaseSettings], error: ValidationError | SettingsError, argv: Sequence[str]
) -> str:
    """The errors as text, with one sentence on each."""
    if isinstance(error, ValidationError):
        return "; ".join(_sentence(kind, one, argv) for one in error.errors())
    # A value that should be JSON and is not: the message quotes the field's name.
    field = next((name for name in kind.model_fields if f'"{name}"' in str(error)), "")
    return f"{_place(kind, (field,), argv)}: {error.__cause__ or error}"


def _sentence(kind: type[BaseSettings], error: ErrorDetails, argv: Sequence[str]) -> str:
    place = _place(kind, tuple(map(str, error["loc"])), argv)
    if error["type"] == "missing":
        return f"{place} must be given"
    if error["type"] == "extra_forbidden":
        return f"{place}: there is no such setting"
    message = error["msg"].removeprefix("Value error, ").replace("Input should", "it must")
    return f"{place}: {message}, not {error['input']!r}"


def _place(kind: type[BaseSettings], path: Path, argv: Sequence[str]) -> str:
    """The flag that a value came from, else the variable, else the file's key."""
    given = [one.partition("=")[0] for one in argv if one.startswith("--")]
    variables = [one.upper() for one in os.environ]
    for there, spell in ((given, _flag), (variables, _variable(kind))):
        for name in _names(kind, path[0]):
            if found := _longest(there, (name, *path[1:]), spell):
                return found
    if path[0] in kind.model_fields and kind.model_fields[path[0]].is_required():
        return f"{_flag(path)} (or {_variable(kind)(path)})"
    return f"{'.'.join(map(to_camel, path))} in the file of --config"


def _longest(there: Sequence[str], path: Path, spell: Callable[[Path], str]) -> str:
    """The longest flag or variable given for the setting, or for a section of it with the missing
    rest."""
    for end in range(len(path), 0, -1):
        if spell(path[:end]) in there:
            return ": ".join((spell(path[:end]), ".".join(path[end:]))).removesuffix(": ")
    return next((one for one in there if one.startswith(spell((*path, "")))), "")


def _flag(path: Path) -> str:
    return "--" + ".".join(path).replace("_", "-")


def _variable(kind: type[BaseSettings]) -> Callable[[Path], str]:
    prefix = kind.model_config.get("env_prefix", "")
    return lambda path: (prefix + "__".join(path)).upper()


def _names(kind: type[BaseSettings], name: str) -> Sequence[str]:
    """All names of the setting that one of its names belongs to."""
    for field, info in kind.model_fields.items():
        alias = info.validation_alias
        names = [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [field]
        if name in names:
            return names
    return [name]
