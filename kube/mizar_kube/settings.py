"""Reads a program's settings from flags, environment variables or a file, by the same names.

A program's settings are a subclass of `Settings` with a description for each field; `load` reads
them. The flag `--metrics-port` wins over the variable `MIZAR_METRICS_PORT`, that over the key
`metricsPort` in the file of `--config`, and that over the names that Kubernetes gives the pod, its
node and its namespace. A key of the file that is not a setting is refused, unless the class sets
`ignores_unknown_keys`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from mizar_kube.setting_errors import SettingsRefused, describe_errors

LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)]
LogFormat = Literal["auto", "json", "console"]
Port = Annotated[int, Field(ge=0, le=65535)]

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
IF_NAMESPACE_UNSET = "if unset: $POD_NAMESPACE, else the namespace of the pod's service account"
"""Describes where a setting `namespace` is taken from, see `_from_the_pod`."""


class Settings(BaseSettings):
    """The settings of all programs."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        env_prefix="MIZAR_",
        env_prefix_target="all",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_show_env_vars=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    ignores_unknown_keys: ClassVar[bool] = False
    """Whether the program starts although the file has unknown keys. An upgrade, for example,
    changes the file while some pods still run the previous version."""

    config: Path | None = Field(None, description="YAML file with these settings in camelCase")
    kubeconfig: str | None = Field(
        None,
        description="kubeconfig file; if unset: $KUBECONFIG, else the pod's service account, else "
        "~/.kube/config",
    )
    identity: str = Field(
        default_factory=socket.gethostname,
        description="name of this replica; if unset: $POD_NAME, else the host name",
    )
    log_level: LogLevel = Field("INFO", description="least severe level that is logged")
    log_format: LogFormat = Field("auto", description="auto: console on a terminal, otherwise json")
    metrics_port: Port = Field(9464, description="port of /healthz, /readyz and /metrics")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources by precedence, highest first; the parser puts flags before all of them."""
        fields = settings_cls.model_fields
        pod = {key: one for key, one in _from_the_pod().items() if one and key in fields}
        return init_settings, env_settings, _File(settings_cls), InitSettingsSource(cls, pod)


class Section(BaseModel):
    """Settings that belong together, within `Settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


T = TypeVar("T", bound=Settings)


def load(kind: type[T], argv: Sequence[str] | None = None) -> T:
    """The settings of a program by its arguments (default: the process') and the environment.

    Prints a sentence and ends the process with exit code 2 if they cannot be used.
    """
    try:
        return read(kind, sys.argv[1:] if argv is None else argv)
    except SettingsRefused as error:
        print(f"{kind.model_config.get('cli_prog_name')}: {error}", file=sys.stderr)
        sys.exit(2)


def read(kind: type[T], argv: Sequence[str]) -> T:
    """As `load`, but raises SettingsRefused. Unknown flags end the process all the same."""
    try:
        return kind(_cli_parse_args=list(argv))
    except (ValidationError, SettingsError) as error:
        raise SettingsRefused(describe_errors(kind, error, argv)) from error


def unknown_keys(settings: Settings) -> list[str]:
    """The unknown keys of the settings' file, each with the sections that it is in."""
    path = settings.config
    if path is None or not path.is_file():
        return []
    return _without_unknown(_in_snake_case(_read(path), type(settings)), type(settings))[1]


def _from_the_pod() -> dict[str, str]:
    """Namespace and names from the downward API and the service account."""
    file = SERVICE_ACCOUNT_NAMESPACE
    own = file.read_text().strip() if file.is_file() else ""
    return {
        "namespace": os.environ.get("POD_NAMESPACE") or own,
        "identity": os.environ.get("POD_NAME", ""),
        "node_name": os.environ.get("NODE_NAME", ""),
    }


class _File(PydanticBaseSettingsSource):
    """The file of --config; only a file that is named explicitly has to exist."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the file is read as a whole")

    def __call__(self) -> dict[str, Any]:
        named = self.current_state.get("config")
        path = named or self.settings_cls.model_fields["config"].default
        if path is None or not (named or path.is_file()):
            return {}
        body = _in_snake_case(_read(Path(path)), self.settings_cls)
        if getattr(self.settings_cls, "ignores_unknown_keys", False):
            return _without_unknown(body, self.settings_cls)[0]
        return body


def _read(path: Path) -> dict[str, Any]:
    try:
        body = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise SettingsRefused(f"cannot read --config {path}: {error}") from error
    if not isinstance(body, dict):
        raise SettingsRefused(f"{path} must hold keys and values, such as logLevel: INFO")
    return body


def _in_snake_case(body: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a model, and of its sections, as Python names them."""
    found = {}
    for key, value in body.items():
        name = to_snake(str(key))
        section = _section(model, name)
        if isinstance(value, dict) and section is not None:
            value = _in_snake_case(value, section)
        found[name] = value
    return found


def _section(model: type[BaseModel], name: str) -> type[Section] | None:
    kind = model.model_fields[name].annotation if name in model.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _without_unknown(
    body: dict[str, Any], model: type[BaseModel]
) -> tuple[dict[str, Any], list[str]]:
    """The part of `body` that the model and its sections define, and the unknown keys."""
    found, unknown = dict[str, Any](), list[str]()
    for name, value in body.items():
        if name not in _all_names(model):
            unknown.append(to_camel(name))
            continue
        section = _section(model, name)
        if isinstance(value, dict) and section is not None:
            value, inside = _without_unknown(value, section)
            unknown += [f"{to_camel(name)}.{one}" for one in inside]
        found[name] = value
    return found, unknown


def _all_names(model: type[BaseModel]) -> set[str]:
    """The names of the model's fields, including former names."""
    found = set(model.model_fields)
    for info in model.model_fields.values():
        if isinstance(info.validation_alias, AliasChoices):
            found |= {str(one) for one in info.validation_alias.choices}
    return found
