"""Flags override variables, variables override the file, and the file overrides what Kubernetes
tells the pod."""

from pathlib import Path

import pytest
from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_kube.setting_errors import SettingsRefused
from mizar_kube.settings import Section, load, read, unknown_keys


class Room(Section):
    door_width: int = Field(1, gt=0, description="of the door")
    lamps: tuple[str, ...] = Field((), description="in it")


class Settings(common.Settings):
    """A program for tests."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-test")

    namespace: str = Field("default", description="where")
    metrics_port: common.Port = Field(
        1, validation_alias=AliasChoices("metrics_port", "port"), description="of probes"
    )
    node_name: str = Field("nowhere", min_length=1, description="the node")
    dry_run: bool = Field(False, description="only look")
    room: Room = Field(Room(), description="the room")


class Tolerant(Settings):
    """A program that outlives changes of its file."""

    ignores_unknown_keys = True


class Needy(Settings):
    node_name: str = Field(min_length=1, description="the node")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("POD_NAME", "POD_NAMESPACE", "NODE_NAME"):
        monkeypatch.delenv(variable, raising=False)


def test_every_source_gives_way_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{namespace: file, metricsPort: 3, nodeName: file, room: {doorWidth: 4}}")
    monkeypatch.setenv("POD_NAMESPACE", "pod")
    monkeypatch.setenv("NODE_NAME", "pod")
    assert (read(Settings, []).namespace, read(Settings, []).metrics_port) == ("pod", 1)
    found = read(Settings, [f"--config={file}"])
    assert (found.namespace, found.metrics_port, found.node_name) == ("file", 3, "file")
    assert found.room == Room(door_width=4)
    monkeypatch.setenv("MIZAR_NAMESPACE", "variable")
    monkeypatch.setenv("MIZAR_METRICS_PORT", "5")
    monkeypatch.setenv("MIZAR_ROOM__DOOR_WIDTH", "6")
    found = read(Settings, [f"--config={file}", "--namespace", "flag"])
    assert (found.namespace, found.metrics_port, found.room.door_width) == ("flag", 5, 6)


def test_an_older_name_is_the_same_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIZAR_PORT", "2")
    assert read(Settings, []).metrics_port == 2
    monkeypatch.setenv("MIZAR_METRICS_PORT", "3")
    assert read(Settings, ["--port=4"]).metrics_port == 4


def test_what_the_pod_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("POD_NAME", "a"), ("POD_NAMESPACE", "b"), ("NODE_NAME", "c")):
        monkeypatch.setenv(variable, value)
    found = read(Settings, [])
    assert (found.identity, found.namespace, found.node_name) == ("a", "b", "c")


def test_a_pod_without_the_downward_api_asks_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text("own\n")
    monkeypatch.setattr(common, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "namespace")
    assert read(Settings, []).namespace == "own"


@pytest.mark.parametrize(
    ("argv", "variables", "sentence"),
    [
        (["--port=x"], {}, "--port: it must be a valid integer"),
        (["--metrics-port", "70000"], {"MIZAR_PORT": "1"}, "--metrics-port: it must be less"),
        ([], {"MIZAR_PORT": "x"}, "MIZAR_PORT: it must be a valid integer.*, not 'x'"),
        ([], {"MIZAR_LOG_LEVEL": "LOUD"}, "MIZAR_LOG_LEVEL: it must be 'DEBUG', 'INFO'"),
        (["--log-format=xml"], {}, "--log-format: it must be 'auto', 'json' or 'console'"),
        (["--room.door-width=0"], {}, "--room.door-width: it must be greater than 0, not '0'"),
        ([], {"MIZAR_ROOM__LAMPS": "a"}, "MIZAR_ROOM__LAMPS: Expecting value"),
        ([], {"MIZAR_ROOM__LAMPS": "[{}]"}, "MIZAR_ROOM__LAMPS: 0: it must be a valid string"),
    ],
)
def test_what_is_wrong_is_named(
    argv: list[str], variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsRefused, match=sentence):
        read(Settings, argv)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("metricsPort: 99999", "metricsPort in the file of --config: it must be less"),
        ("room: {doorWidth: wide}", r"room\.doorWidth in the file of --config: it must be a valid"),
        ("metricPort: 1", "metricPort in the file of --config: there is no such setting"),
        ("room: {doorHeight: 1}", r"room\.doorHeight .* there is no such setting"),
        ("- a", "must hold keys and values"),
        ("{", "cannot read"),
        (None, r"cannot read --config .*settings\.yaml"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsRefused, match=sentence):
        read(Settings, [f"--config={file}"])


def test_keys_of_a_later_version_may_be_left_out(tmp_path: Path) -> None:
    """They are named, and what is known counts as ever: former names, too."""
    file = tmp_path / "settings.yaml"
    file.write_text("{port: 7, later: 1, room: {doorWidth: 4, doorHeight: {max: 2}}}")
    found = read(Tolerant, [f"--config={file}"])
    assert (found.metrics_port, found.room) == (7, Room(door_width=4))
    assert unknown_keys(found) == ["later", "room.doorHeight"]
    file.write_text("{room: {doorWidth: wide}}")
    with pytest.raises(SettingsRefused, match=r"room\.doorWidth in the file of --config"):
        read(Tolerant, [f"--config={file}"])


def test_without_a_file_no_key_is_unknown(tmp_path: Path) -> None:
    assert unknown_keys(read(Tolerant, [])) == []
    file = tmp_path / "settings.yaml"
    file.write_text("room: {}")
    assert unknown_keys(read(Tolerant, [f"--config={file}"])) == []


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SettingsRefused, match=r"^--node-name \(or MIZAR_NODE_NAME\) must be given"):
        read(Needy, [])


@pytest.mark.parametrize("argv", [["--port=x"], ["--colour=red"], ["--dry-run=perhaps"], ["red"]])
def test_wrong_arguments_end_the_process(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load(Settings, argv)
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert last.startswith("mizar-test: ")
    assert argv[0].partition("=")[0] in last


def test_help_tells_flags_variables_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(Settings, ["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--metrics-port int, --port int of probes (default: 1)" in text
    assert "[env: MIZAR_METRICS_PORT | MIZAR_PORT]" in text
    assert "--dry-run, --no-dry-run only look (default: False) [env: MIZAR_DRY_RUN]" in text
    assert "--room.door-width int of the door (default: 1) [env: MIZAR_ROOM__DOOR_WIDTH]" in text
