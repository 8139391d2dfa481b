"""How a node's containers get their cards: what the agent finds there, what it chooses, and where
it reports that."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml

from mizar_core.names import POD_CONDITION_CARD_ACCESS
from mizar_kube.errors import NotFound, Unavailable
from mizar_nodeagent.config import CardAccess, MountConfig, Way
from mizar_nodeagent.container import (
    access_watch,
    auto_strategy,
    card_access,
    cdi_files,
)
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.access_doubts import Doubts, doubts
from mizar_nodeagent.container.access_report import AccessCollector, AccessReporter
from mizar_nodeagent.container.access_watch import AccessWatch
from mizar_nodeagent.container.auto_strategy import (
    Discovery,
    best_way,
    discover,
    gives_cdi_by_nri,
)
from mizar_nodeagent.container.dev_root import check_dev_root
from mizar_nodeagent.container.nri_component import Counts
from mizar_nodeagent.errors import ConfigRefused, NotYet, StartRefused
from support.logs import logged
from unit.nodeagent.fake_runtime import running

TWO = "containerd://2.2.9"
NVIDIA_CTK = Path(__file__).with_name("nvidia-ctk.yaml")


class Host:
    """A node's folders, as the agent sees them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def access(self, **changes: Any) -> CardAccess:
        given = {
            "strategy": "Auto",
            "nri_socket": self.folder / "nri.sock",
            "cdi_dirs": (self.folder / "none", self.folder / "cdi"),
            "nvidia_runtime_config": self.folder / "config.toml",
            "containerd_config": self.folder / "containerd" / "config.toml",
        }
        return CardAccess(**{**given, **changes})

    def cdi(self, body: object, name: str = "nvidia.json") -> None:
        (self.folder / "cdi").mkdir(exist_ok=True)
        text = body if isinstance(body, str) else json.dumps(body)
        (self.folder / "cdi" / name).write_text(text)

    def containerd(self, text: str, name: str = "config.toml") -> None:
        path = self.folder / "containerd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def nvidia(self, text: str) -> None:
        (self.folder / "config.toml").write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


CARDS = {"kind": "nvidia.com/gpu", "devices": [{"name": "all"}, {"name": "GPU-1"}]}
PLUGINS = {**CARDS, "kind": "k8s.device-plugin.nvidia.com/gpu"}
"""As NVIDIA's device plugin writes it, also where the GPU Operator installs it."""


def with_nodes(name: str, *nodes: object) -> dict[str, object]:
    """A device of a CDI file that gives these device nodes."""
    return {"name": name, "containerEdits": {"deviceNodes": list(nodes)}}


def numbered(*paths: str) -> dict[str, object]:
    """A CDI file with the device nodes of card GPU-1."""
    device = with_nodes("GPU-1", *({"path": path} for path in paths))
    return {"kind": "nvidia.com/gpu", "devices": [device]}


TAKES_MARKS = "accept-nvidia-visible-devices-as-volume-mounts = true\n[nvidia-container-cli]\n"


class TestBestWay:
    def test_in_this_order(self, host: Host) -> None:
        assert best_way(host.access(), TWO) == "EnvVar"
        mount = MountConfig(host_path=Path("/a"), container_path=Path("/b"))
        access = host.access(mounts=(mount,))
        assert best_way(access, TWO) == "Mounts"
        host.nvidia(TAKES_MARKS)
        assert best_way(access, TWO) == "VolumeMounts"
        host.cdi(CARDS)
        assert best_way(access, TWO) == "CDI"

    @pytest.mark.parametrize(
        ("runtime", "way"),
        [
            ("containerd://2.0.0", "CDI"),
            ("containerd://v10.1.0-rc.1", "CDI"),
            ("containerd://1.7.27", "EnvVar"),
            ("cri-o://1.27.9", "EnvVar"),
            ("cri-o://1.28.0", "CDI"),
            ("cri-o://1.33.0-3.rhaos4.20.git1a2b3c4.el9", "CDI"),
            ("docker://28.0.1", "EnvVar"),
            ("", "EnvVar"),
        ],
    )
    def test_cdi_only_where_it_is_on(self, host: Host, runtime: str, way: Way) -> None:
        """containerd 1 ignores CDI without an error: the container would have no card."""
        host.cdi(CARDS)
        assert best_way(host.access(), runtime) == way

    @pytest.mark.parametrize(
        ("text", "runtime", "way"),
        [
            ("enable_cdi = true", "containerd://1.7.27", "CDI"),
            ("enable_cdi = true", "containerd://1.6.9", "EnvVar"),
            ("enable_cdi = false", TWO, "EnvVar"),
            ("", TWO, "CDI"),
            ("enable_cdi = false", "containerd://2.0.5-k3s1", "CDI"),
        ],
    )
    def test_cdi_where_containerd_is_told_to_read_it(
        self, host: Host, text: str, runtime: str, way: Way, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That of k3s has its configuration elsewhere."""
        host.cdi(CARDS)
        host.containerd(f"[plugins.'io.containerd.grpc.v1.cri']\n{text}\ncontainerd = {{}}")
        access = host.access()
        monkeypatch.setattr(auto_strategy, "DEFAULT_CONFIG", access.containerd_config)
        assert best_way(access, runtime) == way

    @pytest.mark.parametrize(
        ("imports", "beside", "way"),
        [
            ("[]", "", "CDI"),
            ("['conf.d/*.toml']", "[plugins.'io.containerd.grpc.v1.cri'.registry]", "EnvVar"),
            ("['conf.d/*.toml']", "[plugins.'io.containerd.internal.v1.opt']\npath = '/a'", "CDI"),
            ("[]", "[plugins.'io.containerd.grpc.v1.cri'.registry]", "CDI"),
        ],
    )
    def test_a_file_replaces_what_containerd_1_was_told_before(
        self, host: Host, imports: str, beside: str, way: Way
    ) -> None:
        """containerd 1 takes the section of a plugin whole from the last file that has one: what an
        earlier file says of CDI is lost, and a container with CDI devices would have no card. From
        2.0 on it merges sections."""
        host.cdi(CARDS)
        section = "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\ncontainerd = {}\n"
        host.containerd(f"version = 2\nimports = {imports}\n{section}")
        host.containerd(f"version = 2\n{beside}\n", "conf.d/50-own.toml")
        assert best_way(host.access(), "containerd://1.7.27") == way
        assert best_way(host.access(), TWO) == "CDI"

    def test_containerd_1_reads_no_file_that_is_not_imported(self, host: Host) -> None:
        host.cdi(CARDS)
        section = "[plugins.'io.containerd.grpc.v1.cri']\ncontainerd = {}\n"
        host.containerd(section)
        host.containerd(f"{section}enable_cdi = true\n", "conf.d/50-own.toml")
        assert best_way(host.access(), "containerd://1.7.27") == "EnvVar"

    @pytest.mark.parametrize(
        "spec",
        [
            {"kind": "other.com/gpu", "devices": [{"name": "GPU-1"}]},
            {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}]},
            {"kind": "nvidia.com/gpu"},
            ["nonsense"],
            "{",
        ],
    )
    def test_cdi_only_with_cards_by_uuid(self, host: Host, spec: object) -> None:
        host.cdi(spec)
        assert best_way(host.access(), TWO) == "EnvVar"

    def test_cdi_with_mig_devices_alone(self, host: Host) -> None:
        """For cards that are divided, CDI files name only the MIG devices."""
        host.cdi({"kind": "nvidia.com/gpu", "devices": [{"name": "MIG-1"}, {"name": "all"}]})
        assert best_way(host.access(), TWO) == "CDI"

    def test_cdi_in_yaml(self, host: Host) -> None:
        host.cdi("kind: nvidia.com/gpu\ndevices: [{name: GPU-1}]", "nvidia.yaml")
        assert best_way(host.access(), TWO) == "CDI"

    @pytest.mark.parametrize(
        "text",
        ["", TAKES_MARKS.replace("true", "false"), TAKES_MARKS.replace("true", '"yes"'), "="],
    )
    def test_volume_mounts_only_where_they_are_taken(self, host: Host, text: str) -> None:
        host.nvidia(text)
        assert best_way(host.access(), TWO) == "EnvVar"


class TestStaleFiles:
    """No program writes CDI files anew when MIG devices are made."""

    async def check(self, host: Host, *uuids: str, **access: Any) -> None:
        runtime = SimpleNamespace(problem="", wait=AsyncMock())
        await AccessChoice(host.access(**access), runtime).check([], uuids)

    @pytest.mark.parametrize(
        "access",
        [
            {"strategy": "CDI"},
            {"strategy": "CDIAnnotations"},
            {"strategy": "EnvVar", "also": ("CDI",)},
            {"strategy": "NRI", "nri_gives": "CDI"},
        ],
    )
    async def test_a_card_that_is_in_none_waits(self, host: Host, access: Any) -> None:
        host.cdi(CARDS)
        host.cdi({"kind": "other.com/gpu", "devices": [{"name": "MIG-2"}]}, "other.json")
        await self.check(host, "GPU-1", **access)
        with pytest.raises(NotYet, match=r"MIG-2 is in no CDI file .* run `nvidia-ctk cdi gener"):
            await self.check(host, "GPU-1", "MIG-2", **access)
        new = {**CARDS, "devices": [{"name": "MIG-2"}, {"name": "GPU-1"}]}
        host.cdi(new)
        await self.check(host, "GPU-1", "MIG-2", **access)

    @pytest.mark.parametrize("minor", [0, None])
    async def test_a_card_that_has_another_number_now_waits(
        self, host: Host, minor: int | None
    ) -> None:
        """After a card has dropped out, the driver numbers the others anew. A file of before gives
        a container the device node of another card, perhaps of another tenant."""
        minors = AsyncMock(return_value={} if minor is None else {"GPU-1": minor})
        made = AccessChoice(host.access(strategy="CDI"), minors=minors)
        host.cdi(numbered("/dev/nvidia1"))
        with pytest.raises(NotYet, match=r"nvidia1 for .* written|NVML does not know card GPU-1"):
            await made.check([], ["GPU-1"])
        minors.return_value = {"GPU-1": 1}
        await made.check([], ["GPU-1"])
        minors.return_value = {"GPU-1": 0}
        host.cdi(numbered("/dev/nvidia0"))
        await made.check([], ["GPU-1"])

    @pytest.mark.parametrize("nodes", [["/dev/dxg"], ["/dev/nvidia-uvm", "x", {"path": 1}], 5])
    async def test_a_file_without_numbers_holds_nobody_up(self, host: Host, nodes: object) -> None:
        """As under WSL, or where only the runtime knows the numbers."""
        minors = AsyncMock(side_effect=AssertionError("nothing to compare"))
        made = AccessChoice(host.access(strategy="CDI"), minors=minors)
        paths = nodes if isinstance(nodes, list) else []
        host.cdi(numbered(*[one for one in paths if isinstance(one, str)]))
        await made.check([], ["GPU-1"])
        broken = {"name": "GPU-1", "containerEdits": {"deviceNodes": nodes}}
        host.cdi({**CARDS, "devices": [broken]})
        await made.check([], ["GPU-1"])

    async def test_the_file_that_the_runtime_prefers_counts(self, host: Host) -> None:
        """Of two folders, the later has precedence; where the node has its devices elsewhere, their
        path there counts."""
        (host.folder / "none").mkdir()
        (host.folder / "none" / "old.json").write_text(json.dumps(numbered("/dev/nvidia7")))
        node = {"path": "/dev/nvidia7", "hostPath": "/run/nvidia/driver/dev/nvidia1"}
        host.cdi({**CARDS, "devices": [with_nodes("GPU-1", node)]})
        made = AccessChoice(
            host.access(strategy="CDI"), minors=AsyncMock(return_value={"GPU-1": 1})
        )
        await made.check([], ["GPU-1"])

    async def test_after_auto_has_chosen(self, host: Host) -> None:
        host.cdi(CARDS)
        made = choice(host.access(), nri=False, way="CDI")
        with pytest.raises(NotYet, match="MIG-2 is in no CDI file"):
            await made.check([], ["MIG-2"])
        await choice(host.access(), nri=False, way="EnvVar").check([], ["MIG-2"])

    async def test_other_ways_hold_nobody_up(self, host: Host) -> None:
        host.cdi(CARDS)
        await self.check(host, "MIG-2", strategy="EnvVar")

    async def test_what_nvidias_runtime_names_itself_is_in_no_file(self, host: Host) -> None:
        access = host.access(cdi_kind="runtime.nvidia.com/gpu")
        assert cdi_files.kind_problem(access) == ""
        cdi_files.check_named(access, ["GPU-1"])

    async def test_without_any_card_of_the_kind_nothing_starts(self, host: Host) -> None:
        """The runtime would say "unresolvable CDI devices", and no remedy."""
        for spec in (None, {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}):
            if spec:
                host.cdi(spec)
            with pytest.raises(NotYet, match=r"names cards by UUID .* set cdiDirs$"):
                await self.check(host, "GPU-1", strategy="CDI")
        host.cdi(PLUGINS)
        with pytest.raises(NotYet, match=r"under k8s\.device.* so leave cdiKind empty or set"):
            await self.check(host, "GPU-1", strategy="CDI", cdi_kind="nvidia.com/gpu")
        await self.check(host, "GPU-1", strategy="CDI")

    def test_a_file_is_parsed_once_until_it_changes(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsed: list[str] = []
        load = cdi_files.yaml.safe_load
        monkeypatch.setattr(
            cdi_files.yaml, "safe_load", lambda text: (parsed.append(text), load(text))[1]
        )
        for text in ({**CARDS}, {**CARDS, "devices": [{"name": "MIG-34"}]}):
            host.cdi(text)
            for _ in range(3):
                cdi_files.named_cards(host.access())
        assert len(parsed) == 2


class TestFileOfNvidiaCtk:
    """The file that NVIDIA's nvidia-ctk writes itself, with names by index beside those by UUID."""

    CARD = "GPU-19241415-67e4-5a66-8699-f2f7b545e742"
    INSTANCES = (
        "MIG-3eaade34-95ee-5710-be72-d58a9f7728cf",
        "MIG-6d24b9b4-474c-5485-9551-1963f26032a4",
    )

    def test_it_names_the_cards_and_their_nodes(self, host: Host) -> None:
        host.cdi(NVIDIA_CTK.read_text(), "nvidia.yaml")
        access, uuids = host.access(), (self.CARD, *self.INSTANCES)
        assert best_way(access, TWO) == "CDI"
        assert cdi_files.named_cards(access) == set(uuids)
        assert names_given(access, self.CARD) == [f"nvidia.com/gpu={self.CARD}"]
        minors = cdi_files.minors_of_nodes(access, uuids)
        assert minors == {self.CARD: {0}, **{one: {1} for one in self.INSTANCES}}

    def test_names_by_index_alone_are_a_problem(self, host: Host) -> None:
        """As of --device-name-strategy=index, the toolkit's default before 1.15."""
        spec = yaml.safe_load(NVIDIA_CTK.read_text())
        by_index = [
            one for one in spec["devices"] if one["name"] not in (self.CARD, *self.INSTANCES)
        ]
        host.cdi({**spec, "devices": by_index})
        assert [one["name"] for one in by_index] == ["0", "1:0", "1:1", "all"]
        assert "--device-name-strategy=uuid" in cdi_files.kind_problem(host.access())


def names_given(access: CardAccess, *uuids: str) -> list[str]:
    return list(card_access.parts("CDI", uuids, {}, access).cdi_devices)


class TestKind:
    """Under which names cards are in the node's CDI files."""

    def test_the_first_under_which_files_name_cards(self, host: Host) -> None:
        assert names_given(host.access(), "GPU-1") == ["nvidia.com/gpu=GPU-1"]
        host.cdi({"kind": "nvidia.com/gpu", "devices": [{"name": "all"}]}, "toolkit.json")
        host.cdi(PLUGINS, "plugin.json")
        assert names_given(host.access(), "GPU-1") == ["k8s.device-plugin.nvidia.com/gpu=GPU-1"]
        assert best_way(host.access(), TWO) == "CDI"
        host.cdi(CARDS, "toolkit.json")
        assert names_given(host.access(), "GPU-1") == ["nvidia.com/gpu=GPU-1"]

    def test_what_is_set_rules(self, host: Host) -> None:
        host.cdi(PLUGINS)
        access = host.access(cdi_kind="nvidia.com/gpu")
        assert names_given(access, "GPU-1") == ["nvidia.com/gpu=GPU-1"]
        assert best_way(access, TWO) == "EnvVar"

    def test_what_comes_beside_cards_has_the_vendor_of_its_files(self, host: Host) -> None:
        host.cdi(PLUGINS)
        access = host.access(gds=True, mofed=True)
        assert names_given(access) == ["nvidia.com/gds=all", "nvidia.com/mofed=all"]
        own = {"kind": "k8s.device-plugin.nvidia.com/gds", "devices": [{"name": "all"}]}
        host.cdi(own, "gds.json")
        assert names_given(access) == [
            "k8s.device-plugin.nvidia.com/gds=all",
            "nvidia.com/mofed=all",
        ]

    def test_a_file_that_cannot_be_read_is_told_of_once(
        self, host: Host, caplog: pytest.LogCaptureFixture
    ) -> None:
        host.cdi("{", "broken.json")
        for _ in range(3):
            cdi_files.named_cards(host.access())
        assert [line["event"] for line in logged(caplog)] == ["a CDI file cannot be read"]


SECTION = "plugins.'io.containerd.cri.v1.runtime'.containerd"
RUNC = f"[{SECTION}]\ndefault_runtime_name = 'runc'\n"
CLASS = f"[{SECTION}.runtimes.nvidia.options]\nBinaryName = '/x/nvidia-container-runtime'\n"
NVIDIAS = f"[{SECTION}]\ndefault_runtime_name = 'nvidia'\n{CLASS}"
VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
DOCKERS = 'disabled_plugins = ["cri"]\n'
"""What Docker's package of containerd brings, also beside another containerd."""


class TestVariable:
    """Whether anything on the node reads NVIDIA_VISIBLE_DEVICES."""

    def doubts(self, host: Host, runtime: str = TWO, reads: bool = False) -> Doubts:
        return doubts({"EnvVar"}, host.access(), runtime, reads)

    def test_where_nvidias_runtime_is_the_default_all_is_well(self, host: Host) -> None:
        host.cdi(PLUGINS)
        for text in (
            NVIDIAS,
            NVIDIAS.replace("cri.v1.runtime", "grpc.v1.cri"),
            f"[{SECTION}.runtimes.runc.options]\nBinaryName = '/x/nvidia-container-runtime'\n",
        ):
            host.containerd(text)
            assert self.doubts(host) == Doubts(), text

    def test_nobody_reads_it(self, host: Host) -> None:
        """CDI files beside a containerd without NVIDIA's runtime."""
        host.containerd(RUNC)
        assert not self.doubts(host).problem, "one witness is none"
        assert "so nothing reads the variable" in self.doubts(host).remark
        host.cdi(PLUGINS)
        told = self.doubts(host).problem
        assert "no container gets its card by NVIDIA_VISIBLE_DEVICES" in told
        assert (
            "(k8s.device-plugin.nvidia.com/gpu), so let nodeagent.cardAccess give them by" in told
        )

    def test_only_a_runtime_class_reads_it(self, host: Host) -> None:
        """As with the GPU Operator from 25.10 on. Share pods may name the class."""
        host.containerd(f"imports = ['{host.folder}/containerd/conf.d/*.toml']\n{RUNC}")
        host.containerd(CLASS, "conf.d/99-nvidia.toml")
        found = self.doubts(host)
        assert "the handler nvidia" in found.remark and not found.warning
        host.cdi(PLUGINS)
        found = self.doubts(host)
        assert "the handler nvidia" in found.warning and not found.problem

    def test_a_file_beside_it_has_the_last_word(self, host: Host) -> None:
        host.cdi(PLUGINS)
        host.containerd(RUNC)
        host.containerd(NVIDIAS, "conf.d/99-nvidia.toml")
        assert self.doubts(host) == Doubts()

    @pytest.mark.parametrize(
        ("text", "runtime"),
        [
            (None, TWO),
            ("version = 2", TWO),
            ("[", TWO),
            (DOCKERS + RUNC, TWO),
            ("imports = ['/elsewhere/*.toml']\n" + RUNC, TWO),
            ("imports = ['../elsewhere/*.toml']\n" + RUNC, TWO),
            ("imports = ['.']\n" + RUNC, TWO),
            ("imports = [1]\n" + RUNC, TWO),
            (f"[{SECTION}]\nruntimes = 'runc'\n", TWO),
            (f"plugins = 1\n[other.{SECTION}]\n", TWO),
            (f"[{SECTION}.default_runtime]\nruntime_type = 'x'\n", TWO),
            (RUNC, "cri-o://1.33.0"),
            (RUNC, ""),
            (f"[{SECTION}.runtimes.runc.options]\nBinaryName = '/x/wrapper'\n", TWO),
            (f"[{SECTION}.runtimes.runc]\nbase_runtime_spec = '/x/hooks.json'\n", TWO),
        ],
    )
    def test_what_is_not_plain_cannot_be_told(
        self, host: Host, text: str | None, runtime: str
    ) -> None:
        host.cdi(PLUGINS)
        if text is not None:
            host.containerd(text)
        found = self.doubts(host, runtime)
        assert "does not show whether" in found.remark and not found.problem and not found.warning

    def test_nor_what_an_imported_file_imports(self, host: Host) -> None:
        host.cdi(PLUGINS)
        host.containerd(RUNC)
        host.containerd("imports = ['/elsewhere/*.toml']", "conf.d/99-nvidia.toml")
        assert "does not show whether" in self.doubts(host).remark

    def test_what_gives_the_agent_its_driver_gives_containers_theirs(self, host: Host) -> None:
        host.cdi(PLUGINS)
        host.containerd(RUNC)
        assert self.doubts(host, reads=True) == Doubts()

    @pytest.mark.parametrize(("text", "refused"), [("false", True), ("true", False), ("0", False)])
    def test_nvidias_runtime_may_refuse_it(self, host: Host, text: str, refused: bool) -> None:
        """As `make nvidia-toolkit` shows: runc gets no device, and there is no error."""
        host.containerd(NVIDIAS)
        host.nvidia(f"{VARIABLE} = {text}")
        told = self.doubts(host).warning
        assert (f"sets {VARIABLE} to false, so share containers start without" in told) == refused
        assert self.doubts(host, reads=True) == Doubts(), "the agent's container shows otherwise"
        assert doubts({"EnvVar", "CDI"}, host.access(), TWO, False).warning == ""

    def test_the_runtimes_file_says_nothing_where_nothing_runs_it(self, host: Host) -> None:
        """To let the runtime take volume mounts, as the warning says, would not help."""
        host.containerd(RUNC)
        host.cdi(PLUGINS)
        host.nvidia(f"{VARIABLE} = false")
        found = self.doubts(host)
        assert "so nothing reads the variable" in found.problem
        assert not found.warning

    def test_a_runtimes_file_that_cannot_be_read_is_told_of_once(
        self, host: Host, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The agent looks every two seconds."""
        host.containerd(NVIDIAS)
        for text in ("[", "[broken"):
            host.nvidia(text)
            for _ in range(3):
                assert self.doubts(host) == Doubts()
                assert best_way(host.access(), TWO) == "EnvVar"
        told = [one["event"] for one in logged(caplog)]
        assert told == ["the configuration of NVIDIA's runtime cannot be read"] * 2

    def test_another_way_besides_is_enough(self, host: Host) -> None:
        host.containerd(RUNC)
        host.cdi(PLUGINS)
        assert doubts({"EnvVar", "CDI"}, host.access(), TWO, False) == Doubts()
        assert doubts({"EnvVar", "Mounts"}, host.access(), TWO, False) == Doubts()

    def test_cdi_without_cards_is_told(self, host: Host) -> None:
        host.cdi(PLUGINS)
        access = host.access(cdi_kind="nvidia.com/gpu")
        assert "so leave cdiKind empty" in doubts({"CDI"}, access, TWO, False).problem


class TestWatch:
    """What comes on the node after the agent's start."""

    @staticmethod
    def watch(made: AccessChoice, *versions: str) -> AccessWatch:
        return AccessWatch(made, AsyncMock(side_effect=versions), reads_variable=False)

    async def test_files_that_come_later_are_used_by_auto(self, host: Host) -> None:
        """NVIDIA's plugin may write them after the agent's start."""
        made = AccessChoice(host.access())
        watch = self.watch(made, TWO)
        await watch.start()
        assert (made.strategy, made.problem) == ("EnvVar", "")
        host.cdi(PLUGINS)
        await watch.look()
        assert made.strategy == "CDI" and not made.doubts.problem
        (host.folder / "cdi" / "nvidia.json").unlink()
        await watch.look()
        assert made.strategy == "CDI", "it does not go back"
        assert "no container gets a card by CDI" in made.problem

    async def test_what_was_better_stays(self, host: Host) -> None:
        host.nvidia(TAKES_MARKS)
        made = AccessChoice(host.access())
        watch = self.watch(made, TWO)
        await watch.start()
        host.cdi(CARDS)
        await watch.look()
        assert made.strategy == "VolumeMounts"

    async def test_a_runtime_that_was_not_known_is_asked_for_again(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.cdi(CARDS)
        made = AccessChoice(host.access())
        watch = self.watch(made, "", TWO)
        await watch.start()
        assert made.strategy == "EnvVar"
        waits = iter([10.0, 2.0])

        async def sleep(seconds: float) -> None:
            assert seconds == next(waits)
            if seconds == 2.0:
                raise asyncio.CancelledError

        monkeypatch.setattr(access_watch.asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await watch.run()
        assert made.strategy == "CDI"

    async def test_what_is_set_is_never_changed(self, host: Host) -> None:
        host.cdi(CARDS)
        host.containerd(RUNC)
        made = AccessChoice(host.access(strategy="EnvVar"))
        await self.watch(made, TWO).start()
        assert made.strategy == "EnvVar"
        assert "no container gets its card by NVIDIA_VISIBLE_DEVICES" in made.problem

    async def test_by_nri_it_is_told_apart_from_a_runtime_that_does_not_ask(
        self, host: Host
    ) -> None:
        host.containerd(RUNC)
        host.cdi(CARDS)
        runtime = SimpleNamespace(problem="", connections=1, is_foreign=False)
        made = AccessChoice(host.access(strategy="NRI", nri_gives="EnvVar"), runtime)
        await self.watch(made, TWO).start()
        assert made.problem and not made.runtime_problem


OLD = "containerd://2.0.7-k3s1"
CDI_ON = "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\ncontainerd = {}\n"


def watched(access: CardAccess, version: str, connected: bool = True) -> AccessWatch:
    """A look at a node where a runtime of this version listens for NRI plugins, and where the agent
    is connected to it."""
    runtime = SimpleNamespace(
        problem="" if connected else "gone",
        connections=int(connected),
        is_foreign=False,
        wait=AsyncMock(),
    )
    return TestWatch.watch(AccessChoice(access, runtime), version)


OFF = CDI_ON.replace("true", "false")
UNSET = CDI_ON.replace("enable_cdi = true\n", "")
SEVEN = "containerd://1.7.35"


class TestCDIIsRead:
    """A containerd that does not read CDI devices starts containers without their card."""

    def doubts(self, host: Host, runtime: str, text: str = "", by_nri: bool = False) -> Doubts:
        host.cdi(CARDS)
        if text:
            host.containerd(text)
        return doubts({"CDI"}, host.access(), runtime, False, by_nri)

    @pytest.mark.parametrize(
        ("runtime", "text"), [(SEVEN, UNSET), (SEVEN, OFF), (TWO, OFF), ("containerd 1.7.29", OFF)]
    )
    def test_it_is_told_where_the_configuration_shows_it(
        self, host: Host, runtime: str, text: str
    ) -> None:
        told = self.doubts(host, runtime, text).problem
        assert "config.toml on the node" in told and "does not set enable_cdi to true" in told
        assert f"containerd {'1.7' if '1.7' in runtime else '2.2'} ignores CDI devices" in told

    @pytest.mark.parametrize(
        ("runtime", "text"),
        [(SEVEN, CDI_ON), (TWO, UNSET), (TWO, ""), ("cri-o://1.34.0", OFF), ("", OFF)],
    )
    def test_where_it_is_read_all_is_well(self, host: Host, runtime: str, text: str) -> None:
        assert self.doubts(host, runtime, text) == Doubts()

    def test_without_its_configuration_it_is_a_remark(self, host: Host) -> None:
        found = self.doubts(host, SEVEN)
        assert "does not show whether the node's containerd sets enable_cdi" in found.remark
        assert not found.problem

    def test_a_part_that_cannot_be_read_may_set_it(self, host: Host) -> None:
        """k0s and others keep parts of it in folders of their own."""
        found = self.doubts(host, SEVEN, f"imports = ['/etc/k0s/containerd.d/*.toml']\n{UNSET}")
        assert "does not show whether the node's containerd sets enable_cdi" in found.remark
        assert not found.problem

    @pytest.mark.parametrize("runtime", ["containerd://1.6.36", "cri-o://1.27.1"])
    def test_too_old_a_runtime(self, host: Host, runtime: str) -> None:
        assert f"{runtime}, ignores CDI devices" in self.doubts(host, runtime, CDI_ON).problem

    @pytest.mark.parametrize(("runtime", "told"), [(SEVEN, True), ("containerd://2.1.0", False)])
    def test_what_nri_asks_for(self, host: Host, runtime: str, told: bool) -> None:
        """1.7 refuses it, 2.1 gives it."""
        assert bool(self.doubts(host, runtime, OFF, by_nri=True).problem) is told

    def test_another_way_besides_is_enough(self, host: Host) -> None:
        host.cdi(CARDS)
        host.containerd(OFF)
        assert doubts({"CDI", "EnvVar"}, host.access(), SEVEN, False) == Doubts()
        assert doubts({"CDIAnnotations"}, host.access(), SEVEN, False) == Doubts()

    async def test_an_upgrade_ends_it(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without NRI only the node's status tells of it."""
        host.cdi(CARDS)
        host.containerd(UNSET)
        made = AccessChoice(host.access(strategy="CDI"))
        watch = TestWatch.watch(made, SEVEN, SEVEN, "", TWO)
        await watch.start()
        assert "enable_cdi" in made.problem
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if not made.problem:
                raise asyncio.CancelledError

        monkeypatch.setattr(access_watch.asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await watch.run()
        assert waits == [10.0, 10.0, 10.0, 2.0]


class TestCDIByNRI:
    """Some runtimes drop the CDI devices that NRI plugins ask for: a container would start without
    its card, while the agent believes to have given it."""

    @pytest.mark.parametrize(
        ("runtime", "gives"),
        [
            ("containerd://1.7.29", False),
            ("containerd://1.7.30", True),
            ("containerd://1.7.31-k3s1", True),
            ("containerd://2.0.0", False),
            ("containerd://2.0.12", False),
            ("containerd v2.0.7", False),
            (OLD, False),
            ("containerd://2.1.0", True),
            ("containerd://v2.1.0-rc.1", True),
            (TWO, True),
            ("cri-o://1.33.9", False),
            ("cri-o://1.34.0", True),
            ("cri-o 1.34.2", True),
            ("docker://28.0.1", None),
            ("containerd://unknown", None),
            ("", None),
        ],
    )
    def test_by_version(self, runtime: str, gives: bool | None) -> None:
        assert gives_cdi_by_nri(runtime) is gives

    async def started(self, host: Host, access: CardAccess, version: str) -> AccessChoice:
        watch = watched(access, version)
        async with running(access.nri_socket):
            await watch.start()
        return watch._access

    @pytest.mark.parametrize("version", ["containerd://1.7.29", "cri-o://1.33.9", OLD])
    async def test_auto_gives_cdi_by_the_answer_of_allocate(self, host: Host, version: str) -> None:
        host.cdi(CARDS)
        host.containerd(CDI_ON)
        made = await self.started(host, host.access(), version)
        assert (made.strategy, made.answered, made.by_nri) == ("CDI", "CDI", False)
        assert made.describe() == "CDI" and not made.problem
        await made.check([], ["GPU-1"])

    @pytest.mark.parametrize("version", ["containerd://1.7.30", "cri-o://1.34.0", TWO])
    async def test_auto_gives_it_by_nri_elsewhere(self, host: Host, version: str) -> None:
        host.cdi(CARDS)
        host.containerd(CDI_ON)
        made = await self.started(host, host.access(), version)
        assert made.describe() == "NRI, which gives CDI" and not made.problem

    @pytest.mark.parametrize("gives", ["EnvVar", "Mounts", "VolumeMounts"])
    async def test_auto_gives_what_is_not_dropped_by_nri(self, host: Host, gives: Way) -> None:
        host.cdi(CARDS)
        made = await self.started(host, host.access(nri_gives=gives), OLD)
        assert made.describe() == f"NRI, which gives {gives}"

    async def test_auto_with_cdi_by_nri_set(self, host: Host) -> None:
        host.cdi(CARDS)
        made = await self.started(host, host.access(nri_gives="CDI"), OLD)
        assert (made.strategy, made.by_nri) == ("CDI", False)

    async def test_nor_once_files_appear(self, host: Host) -> None:
        """NVIDIA's plugin may write them after the agent's start. Pods of before then are told to
        be deleted: what NRI could give them besides CDI may be read by nobody."""
        access = host.access()
        watch = watched(access, OLD)
        async with running(access.nri_socket):
            await watch.start()
        made = watch._access
        assert made.describe() == "NRI, which gives EnvVar"
        host.cdi(CARDS)
        await watch.look()
        assert (made.strategy, made.by_nri, made.problem) == ("CDI", False, "")
        await made.check([SimpleNamespace(by_nri=False)], ["GPU-1"])  # type: ignore[list-item]
        with pytest.raises(StartRefused, match=r"by NRI, .*2\.0\.7.* drops CDI.*: delete the pod"):
            await made.check([SimpleNamespace(by_nri=True)], ["GPU-1"])  # type: ignore[list-item]

    @pytest.mark.parametrize(
        ("files", "changes", "given"),
        [
            ("", {"mounts": [MountConfig(host_path="/a", container_path="/b")]}, "Mounts"),
            ("marks", {}, "VolumeMounts"),
            ("default", {}, "EnvVar"),
            ("", {"also": ["Mounts"]}, "EnvVar"),
            ("classes", {"also": ["CDI", "EnvVar"]}, "EnvVar"),
            ("", {"also": ["EnvVar", "VolumeMounts"], "nri_gives": "CDI"}, "CDI"),
        ],
    )
    async def test_pods_of_before_keep_what_nri_gives_besides(
        self, host: Host, files: str, changes: dict[str, Any], given: Way
    ) -> None:
        """An earlier agent did not know that the runtime reads CDI files, or drops what NRI gives
        by CDI, and gave cards by NRI in another way."""
        host.cdi(CARDS)
        if files == "marks":
            host.nvidia(TAKES_MARKS)
        if files == "default":
            host.containerd(NVIDIAS)
        if files == "classes":
            host.containerd(RUNC + CLASS)
        made = await self.started(host, host.access(**changes), OLD)
        assert (made.strategy, made.by_nri, made.given_by_nri) == ("CDI", False, given)
        before = SimpleNamespace(by_nri=True)
        await made.check([before], ["GPU-in-no-file"])  # type: ignore[list-item]
        with pytest.raises(NotYet, match="in no CDI file"):
            await made.check([SimpleNamespace(by_nri=False)], ["GPU-in-no-file"])  # type: ignore[list-item]

    @pytest.mark.parametrize(
        "changes",
        [{}, {"nri_gives": "CDI"}, {"also": ["CDI"]}, {"also": ["EnvVar"], "nri_gives": "CDI"}],
    )
    async def test_pods_of_before_are_told_where_nothing_shows_another_way(
        self, host: Host, changes: dict[str, Any]
    ) -> None:
        host.cdi(CARDS)
        host.containerd(RUNC)
        made = await self.started(host, host.access(**changes), OLD)
        with pytest.raises(StartRefused, match="delete the pod"):
            await made.check([SimpleNamespace(by_nri=True)], ["GPU-1"])  # type: ignore[list-item]

    async def test_by_nri_the_next_best_way_is_given(self, host: Host) -> None:
        host.cdi(CARDS)
        made = await self.started(host, host.access(strategy="NRI"), OLD)
        assert made.describe() == "NRI, which gives EnvVar"
        host.nvidia(TAKES_MARKS)
        made = await self.started(host, host.access(strategy="NRI"), OLD)
        assert made.describe() == "NRI, which gives VolumeMounts" and not made.problem

    async def test_cdi_by_nri_that_is_set_is_a_problem(self, host: Host) -> None:
        host.cdi(CARDS)
        made = await self.started(host, host.access(strategy="NRI", nri_gives="CDI"), OLD)
        assert made.problem == (
            "the node's container runtime, containerd://2.0.7-k3s1, drops CDI devices that are "
            "given by NRI, as do containerd before 2.1 (except 1.7 from 1.7.30 on) and CRI-O "
            "before 1.34, so no container gets its card: set nodeagent.cardAccess.strategy to CDI "
            "or Auto, or nriGives to another way than CDI, or upgrade the container runtime"
        )
        with pytest.raises(NotYet, match="drops CDI devices"):
            await made.check([SimpleNamespace(by_nri=True)], ["GPU-1"])  # type: ignore[list-item]

    @pytest.mark.parametrize("also", [(), ("Mounts",)])
    async def test_it_is_none_elsewhere(self, host: Host, also: tuple[Way, ...]) -> None:
        host.cdi(CARDS)
        access = host.access(strategy="NRI", nri_gives="CDI", also=also, device_nodes=())
        for version in (TWO, "", "docker://28.0.1", *([OLD] if also else [])):
            assert not (await self.started(host, access, version)).problem

    async def test_the_runtime_itself_tells_before_the_api_server(self, host: Host) -> None:
        """What it creates right after its connection must get its card already."""
        host.cdi(CARDS)
        for version, described in (
            ("containerd v2.0.7", "CDI"),
            ("containerd v2.2.9", "NRI, which gives CDI"),
        ):
            access = host.access()
            watch = watched(access, "")
            async with running(access.nri_socket):
                await watch.start()
            assert watch._access.describe() == "NRI, which gives EnvVar"
            watch.connected(version)
            assert watch._access.describe() == described

    async def test_a_runtime_of_another_version_is_noticed(self, host: Host) -> None:
        """It connects anew after an upgrade; the node's status may still have the old version."""
        host.cdi(CARDS)
        access = host.access()
        watch = watched(access, TWO)
        async with running(access.nri_socket):
            await watch.start()
        made = watch._access
        for version, described in (
            ("containerd v2.2.9", "NRI, which gives CDI"),
            ("containerd v2.0.7", "CDI"),
            ("", "CDI"),
            ("containerd unknown", "CDI"),
            ("containerd v2.1.0", "NRI, which gives CDI"),
        ):
            watch.connected(version)
            await watch.look()
            assert made.describe() == described, version

    async def test_what_works_beside_cdi_is_known_when_it_connects(self, host: Host) -> None:
        """Right after that it asks for containers of pods that were admitted before."""
        host.cdi(CARDS)
        host.containerd(NVIDIAS)
        access = host.access()
        watch = watched(access, "")
        async with running(access.nri_socket):
            await watch.start()
        watch.connected("containerd v2.0.7")
        await watch._access.check([SimpleNamespace(by_nri=True)], ["GPU-1"])  # type: ignore[list-item]

    async def test_an_older_answer_of_the_api_server_does_not_count(self, host: Host) -> None:
        made = AccessChoice(host.access())

        async def ask() -> str:
            watch.connected("containerd v2.0.7")
            return TWO

        watch = AccessWatch(made, ask, reads_variable=False)
        await watch.start()
        assert "v2.0.7, drops" in made.cdi_dropped


class TestDevRoot:
    def test_the_folder_above_is_refused(self, host: Host) -> None:
        """NVIDIA's plugin wants that folder."""
        (host.folder / "d" / "dev").mkdir(parents=True)
        access = host.access(dev_root=Path("/d"), host_root=host.folder)
        check_dev_root(access)
        (host.folder / "d" / "dev" / "nvidiactl").touch()
        with pytest.raises(ConfigRefused, match=r"devRoot /d must be .* set devRoot to /d/dev$"):
            check_dev_root(access)
        check_dev_root(host.access(dev_root=Path("/d/dev"), host_root=host.folder))


class TestDiscovery:
    async def test_nri_where_the_runtime_listens(self, host: Host) -> None:
        access = host.access()
        assert not (await discover(access, TWO)).nri
        async with running(access.nri_socket) as runtime:
            assert await discover(access, TWO) == Discovery(nri=True, way="EnvVar")
            await runtime.connections.get()

    async def test_not_where_a_runtime_has_left_its_socket(self, host: Host) -> None:
        host.access().nri_socket.touch()
        assert not (await discover(host.access(), TWO)).nri


def choice(
    access: CardAccess, nri: bool, way: Way, connections: int = 0, foreign: bool = False
) -> AccessChoice:
    problem = "" if connections else "gone"
    runtime = SimpleNamespace(problem=problem, connections=connections, is_foreign=foreign)
    made = AccessChoice(access, runtime)
    made.settle(Discovery(nri, way))
    return made


class TestChoice:
    def test_auto_takes_nri_first(self, host: Host) -> None:
        made = choice(host.access(), nri=True, way="CDI")
        assert (made.strategy, made.answered, made.given) == ("NRI", None, "CDI")
        assert made.by_nri and made.describe() == "NRI, which gives CDI"

    @pytest.mark.parametrize("way", ["CDI", "VolumeMounts", "Mounts", "EnvVar"])
    def test_else_what_there_is(self, host: Host, way: Way) -> None:
        made = choice(host.access(), nri=False, way=way)
        assert (made.strategy, made.answered, made.given) == (way, way, way)
        assert not made.by_nri and not made.problem

    def test_a_runtime_that_comes_later_is_not_passed_over(self, host: Host) -> None:
        """Nor is it passed over when it goes away again: a tenant could override what the answer of
        Allocate says."""
        made = choice(host.access(), nri=False, way="EnvVar", connections=1)
        assert made.by_nri and not made.problem
        made.runtime = SimpleNamespace(problem="gone again", connections=1, is_foreign=False)
        assert made.by_nri and "gone again" in made.problem

    def test_another_runtime_at_the_socket_is_no_nri(self, host: Host) -> None:
        """The kubelet's may have none, as containerd 1.7 of k3s beside Debian's containerd."""
        made = choice(host.access(), nri=True, way="CDI", foreign=True)
        assert (made.strategy, made.by_nri, made.problem) == ("CDI", False, "")
        made = choice(host.access(), nri=True, way="CDI", connections=1, foreign=True)
        assert made.by_nri, "the kubelet's was there before: it has NRI"

    def test_what_is_configured_counts(self, host: Host) -> None:
        made = choice(host.access(strategy="CDI"), nri=True, way="Mounts")
        assert (made.strategy, made.given, made.looks, made.may_use_nri) == (
            *("CDI", "CDI"),
            *(False, False),
        )
        made = choice(host.access(strategy="NRI", nri_gives="EnvVar"), nri=False, way="CDI")
        assert (made.strategy, made.given, made.looks) == ("NRI", "EnvVar", False)

    def test_it_is_logged(self, host: Host, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        choice(host.access(), nri=True, way="Mounts")
        assert {line["event"]: line["access"] for line in logged(caplog) if "access" in line} == {
            "the way by which containers get their cards was chosen": "NRI, which gives Mounts"
        }


class Pods:
    """A client that remembers the conditions that were written."""

    def __init__(self) -> None:
        self.written: list[dict[str, str]] = []
        self.fault: Exception | None = None

    async def apply(self, obj: dict[str, Any], field_manager: str, subresource: str) -> None:
        if self.fault:
            raise self.fault
        assert (obj["kind"], subresource) == ("Pod", "status")
        assert obj["metadata"] == {"namespace": "mizar-system", "name": "agent-x"}
        self.written += obj["status"]["conditions"]


class TestReport:
    async def test_on_the_agents_pod(self, host: Host) -> None:
        pods = Pods()
        made = choice(host.access(device_nodes=()), nri=True, way="Mounts", connections=1)
        reporter = AccessReporter(pods, made, "mizar-system", "agent-x")  # type: ignore[arg-type]
        await reporter.write()
        await reporter.write()
        assert pods.written == [
            {
                "type": "mizar.share/card-access",
                "status": "True",
                "reason": "NRI",
                "message": "containers get their cards by NRI, which gives Mounts",
            }
        ], "once"
        made.runtime = SimpleNamespace(problem="socket gone", connections=1, is_foreign=False)
        await reporter.write()
        assert pods.written[-1]["status"] == "False"
        assert "no container gets its card: socket gone" in pods.written[-1]["message"]

    async def test_what_nobody_reads_and_what_cannot_be_told(self, host: Host) -> None:
        pods = Pods()
        made = choice(host.access(strategy="EnvVar"), nri=False, way="EnvVar")
        reporter = AccessReporter(pods, made, "mizar-system", "agent-x")  # type: ignore[arg-type]
        for found, status, message in (
            (Doubts(problem="nobody"), "False", "nobody"),
            (Doubts(warning="some do not"), "False", "some do not"),
            (Doubts(remark="who knows"), "True", "containers get their cards by EnvVar; who knows"),
        ):
            made.doubts = found
            await reporter.write()
            assert (pods.written[-1]["status"], pods.written[-1]["message"]) == (status, message)
        reporter = AccessReporter(
            *(pods, made, "mizar-system", "agent-x"),  # type: ignore[arg-type]
            lambda: "as to limits",
        )
        await reporter.write()
        assert pods.written[-1]["message"].endswith("by EnvVar; who knows; as to limits")
        assert not made.problem, "neither a warning nor a remark makes the agent unready"

    async def test_device_nodes_that_are_not_there(self, host: Host) -> None:
        """This is a problem until they are there, and none where containers are given no device
        nodes."""
        pods, gds = Pods(), {"dev_root": Path("/dev"), "host_root": host.folder, "gds": True}
        made = choice(host.access(**gds), nri=False, way="Mounts")
        reporter = AccessReporter(pods, made, "mizar-system", "agent-x")  # type: ignore[arg-type]
        (host.folder / "dev").mkdir()
        for name in ("nvidiactl", "nvidia-uvm"):
            (host.folder / "dev" / name).touch()
        await reporter.write()
        assert (pods.written[-1]["status"], pods.written[-1]["reason"]) == ("False", "Mounts")
        assert "by Mounts, but go without" in pods.written[-1]["message"]
        assert pods.written[-1]["message"].endswith(
            "not in /dev (cardAccess.devRoot) on the node: nvidia-fs*"
        )
        (host.folder / "dev" / "nvidia-fs0").touch()
        await reporter.write()
        assert pods.written[-1]["status"] == "True"
        assert not choice(host.access(**gds), nri=False, way="CDI").lacking

    async def test_what_fails_is_tried_again(
        self, host: Host, caplog: pytest.LogCaptureFixture
    ) -> None:
        pods = Pods()
        made = choice(host.access(), nri=False, way="CDI")
        turns: list[tuple[Exception | None, Way]] = [
            (Unavailable("down"), "EnvVar"),
            (None, "EnvVar"),
            (None, "EnvVar"),
            (NotFound("no pod"), "CDI"),
        ]

        async def next_turn(seconds: float) -> None:
            pods.fault, way = turns.pop(0)
            made.settle(Discovery(False, way))

        reporter = AccessReporter(pods, made, "mizar-system", "agent-x", sleep=next_turn)  # type: ignore[arg-type]
        await next_turn(0)
        await reporter.run()
        assert [one["reason"] for one in pods.written] == ["EnvVar"]
        (line,) = [one for one in logged(caplog) if one["level"] == "warning"]
        assert (line["event"], line["name"]) == (
            "a condition of the agent's own pod cannot be written",
            POD_CONDITION_CARD_ACCESS,
        )

    def test_as_metrics(self, host: Host) -> None:
        def samples(made: AccessChoice) -> dict[tuple[str, ...], float]:
            counts = Counts(given=3, refused=2, missed=1)
            return {
                (sample.name, *sample.labels.values()): sample.value
                for family in AccessCollector("n", made, counts).collect()
                for sample in family.samples
            }

        assert samples(choice(host.access(), nri=False, way="CDI")) == {
            ("mizar_card_access_info", "n", "CDI", "CDI"): 1
        }
        made = choice(host.access(), nri=True, way="Mounts", connections=1)
        assert samples(made) == {
            ("mizar_card_access_info", "n", "NRI", "Mounts"): 1,
            ("mizar_runtime_connected", "n"): 1,
            ("mizar_runtime_containers_total", "n", "given"): 3,
            ("mizar_runtime_containers_total", "n", "refused"): 2,
            ("mizar_runtime_containers_total", "n", "missed"): 1,
        }
        made.runtime = SimpleNamespace(problem="gone", connections=1, is_foreign=False)
        assert samples(made)["mizar_runtime_connected", "n"] == 0
