"""The device plugin against a kubelet that behaves like the real one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from mizar_kube.backoff import Backoff
from mizar_nodeagent.errors import AllocationRefused
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import Advertised, KubeletPoller
from mizar_nodeagent.kubelet.socket_watch import CONNECTED_S, EVERY_S, KubeletSocket
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.plugin import registration, server
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.plugin.registration import ResourcePlugin
from mizar_nodeagent.plugin.server import Handlers
from mizar_nodeagent.plugin.streams import Streams
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_kubelet import Admission, FakeKubelet, KubePod

FOR_EVER_S = 3600.0
R = "team-a.mizar.share/gpu.2"
ONE = Device("team-a/shadow-a-0", True)
TWO = Device("team-a/shadow-a-1", True, (1,))
POD = KubePod("team-a", "share", "u1")


class FakeHandlers:
    """Permits everything except the ID that ends with `-13`."""

    def __init__(self) -> None:
        self.started: list[Sequence[str]] = []

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        return sorted(available)[:size]

    async def allocate(self, resource: str, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        if any(one.endswith("-13") for one in ids):
            raise AllocationRefused("no 13 here")
        return pb.ContainerAllocateResponse(envs={"IDS": ",".join(ids)})

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        self.started.append(ids)


class Slow:
    """A plugin that ends only when the test lets it."""

    def __init__(self, said: list[str], may_end: asyncio.Event) -> None:
        self.said, self.may_end = said, may_end

    def update(self, devices: object) -> None:
        pass

    async def run(self) -> None:
        self.said.append("begin")
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
            self.said.append("end")


async def let_run() -> None:
    """Let all tasks run until each waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def plugins(
    kubelet: FakeKubelet,
    fake: FakeHandlers | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[PluginManager]:
    socket = KubeletSocket(kubelet.plugin_dir, sleep)
    given = fake or FakeHandlers()
    handlers = Handlers(given.preferred, given.allocate, given.prestart)
    podresources = PodResources(kubelet.podresources_dir / "kubelet.sock")
    asked = KubeletPoller(podresources, lambda: None).poll_devices
    made = PluginManager(
        lambda name: ResourcePlugin(
            name, kubelet.plugin_dir, socket, asked, handlers, lambda call, seconds: None
        ),
        clock,
    )
    try:
        yield made
    finally:
        await made.close()
        await podresources.close()
        await kubelet.stop()


@asynccontextmanager
async def registered(kubelet: FakeKubelet) -> AsyncIterator[PluginManager]:
    """A kubelet that has started and follows a list of one device."""
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R) and made.connected()[R])
        yield made


def count_registered(caplog: pytest.LogCaptureFixture) -> int:
    """How often a plugin has registered and then begun to wait whether the kubelet loses it. The
    kubelet has the list a moment earlier."""
    return sum(one["event"] == "registered with the kubelet" for one in logged(caplog))


@pytest.fixture
async def kubelet(tmp_path_factory: pytest.TempPathFactory) -> FakeKubelet:
    # A socket's path must be short.
    return FakeKubelet(tmp_path_factory.mktemp("k"))


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError()])
async def test_a_plugin_that_ends_by_mistake_is_started_again(error: BaseException) -> None:
    """A cancellation may come out of gRPC, and nobody else ends a plugin that has devices."""
    runs = []

    class Fails:
        connected = False

        def update(self, devices: object) -> None: ...

        async def run(self) -> None:
            runs.append(1)
            if len(runs) == 1:
                raise error
            await asyncio.Event().wait()

    made = PluginManager(lambda name: Fails())  # type: ignore[arg-type,return-value]
    for _ in range(2):
        made.apply({R: (ONE,)})
        await let_run()
    assert len(runs) == 2
    await made.close()


async def test_the_kubelet_gets_the_list_and_its_changes(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE, TWO)})
        await until(lambda: kubelet.devices.get(R) == {ONE.id: True, TWO.id: True})
        made.apply({R: (ONE, Device(TWO.id, False))})
        await until(lambda: kubelet.devices[R] == {ONE.id: True, TWO.id: False})
        assert kubelet.registrations == [R]


async def test_allocation_goes_through(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    fake = FakeHandlers()
    async with plugins(kubelet, fake) as made:
        made.apply({R: (ONE, TWO)})
        await until(lambda: kubelet.is_serving(R))
        held = await kubelet.allocate(POD, "main", R, 1)
        assert held.answer.envs["IDS"] == ONE.id
        await kubelet.start_container(POD, "main", R)
        assert fake.started == [[ONE.id]]


async def test_a_refusal_reaches_the_kubelet_with_its_sentence(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (Device("team-a/shadow-a-13", True),)})
        await until(lambda: kubelet.is_serving(R))
        with pytest.raises(Admission, match="no 13 here"):
            await kubelet.allocate(POD, "main", R, 1)


async def test_registers_when_the_kubelet_comes_late(kubelet: FakeKubelet) -> None:
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await let_run()
        await kubelet.start()
        await until(lambda: kubelet.is_serving(R))


async def test_registers_again_when_the_kubelet_restarts(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so at once: a plugin that waits for its back-off to end would wait for ever."""
    caplog.set_level("INFO")
    monkeypatch.setattr(
        registration, "Backoff", lambda first, most: Backoff(FOR_EVER_S, FOR_EVER_S)
    )
    monkeypatch.setattr(registration, "STREAM_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(registration, "REGISTER_TIMEOUT_S", PATIENCE_S)
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        before = {path.name for path in kubelet.plugin_dir.glob("mizar-*")}
        for count in (1, 2):
            await until(lambda count=count: count_registered(caplog) == count)
            await kubelet.restart()
            await until(lambda: kubelet.is_serving(R))
        after = {path.name for path in kubelet.plugin_dir.glob("mizar-*")}
        assert len(after) == 1 and not before & after


async def test_looks_for_the_kubelets_socket_often_only_until_it_is_registered(
    kubelet: FakeKubelet,
) -> None:
    """The end of a stream tells of a restart sooner, and each look wakes the agent."""
    looks: list[float] = []

    async def sleep(seconds: float) -> None:
        looks.append(seconds)
        await asyncio.sleep(min(seconds, 0.01))

    async with plugins(kubelet, sleep=sleep) as made:
        made.apply({R: (ONE,)})
        await until(lambda: len(looks) > 3)
        assert set(looks) == {EVERY_S}
        await kubelet.start()
        await until(lambda: made.connected().get(R) and looks[-1] == CONNECTED_S)
        looks.clear()
        await until(lambda: len(looks) > 3)
        assert set(looks) == {CONNECTED_S}


async def test_registers_again_when_the_stream_ends(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        await kubelet.drop_stream(R)
        await until(lambda: not kubelet.is_serving(R))
        await until(lambda: kubelet.is_serving(R))


async def test_two_streams_end_as_one(kubelet: FakeKubelet) -> None:
    """The kubelet connected twice: the end of the old stream would undo the new registration."""
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        (socket,) = kubelet.plugin_dir.glob("mizar-*.sock")
        await kubelet.connect(R, socket)
        await until(lambda: made.connected()[R] is False)
        await until(lambda: kubelet.is_serving(R) and made.connected()[R])
        made.apply({R: (ONE, TWO)})
        await until(lambda: len(kubelet.healthy(R)) == 2)


async def test_registers_again_when_the_kubelet_has_undone_the_registration(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream stays open, so that only the kubelet's answer shows it."""
    caplog.set_level("INFO")
    async with registered(kubelet) as made:
        await until(lambda: count_registered(caplog))
        kubelet.undo_registration(R)
        for now in (0.0, 9.9):
            made.apply({R: (ONE,)}, Advertised({}, at=now))
        await let_run()
        assert made.connected()[R] and not kubelet.is_serving(R)
        made.apply({R: (ONE,)}, Advertised({}, at=10.0))
        await until(lambda: kubelet.is_serving(R))


@pytest.mark.parametrize("after", [0.1, 3 * registration.SETTLE_S])
@pytest.mark.parametrize("breaks", ["stream", "socket"])
async def test_a_kubelet_that_is_slow_to_handle_an_end_does_not_undo_the_next_registration(
    kubelet: FakeKubelet, breaks: str, after: float
) -> None:
    """The plugin waits whether the stream has ended or the socket has changed: if it saw the old
    kubelet's socket just before, it may have registered with the new kubelet."""
    kubelet.ends_after = after
    async with registered(kubelet):
        if breaks == "stream":
            await kubelet.drop_stream(R)
        else:
            (kubelet.plugin_dir / "kubelet.sock").chmod(0o700)
        await until(lambda: kubelet.ended == 1 and kubelet.is_serving(R))


async def test_a_stream_that_broke_is_given_the_same_time(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever random number the back-off uses."""
    monkeypatch.setattr(
        registration, "Backoff", lambda first, most: Backoff(first, most, lambda: 0.0)
    )
    kubelet.ends_after = 0.8 * registration.SETTLE_S
    async with registered(kubelet):
        await kubelet.drop_stream(R)
        await until(lambda: kubelet.ended == 1 and kubelet.is_serving(R))


@pytest.mark.parametrize("answers", [True, False])
async def test_a_kubelet_that_keeps_its_devices_is_waited_for_no_longer_than_a_bound(
    kubelet: FakeKubelet, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for a kubelet that does not tell which devices it has."""
    monkeypatch.setattr(registration, "FORGET_TIMEOUT_S", 0.2)
    await kubelet.start()
    kubelet.devices[R] = {"kept": True}
    if not answers:
        (kubelet.podresources_dir / "kubelet.sock").unlink()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.healthy(R) == {ONE.id} and made.connected()[R])


@pytest.mark.parametrize(
    ("devices", "had"),
    [((ONE, TWO), frozenset({TWO.id})), ((Device(ONE.id, False),), frozenset()), ((), frozenset())],
)
async def test_stays_registered_when_the_kubelet_follows(
    kubelet: FakeKubelet, devices: tuple[Device, ...], had: frozenset[str]
) -> None:
    """The kubelet follows if it has the list's only device, or if the list is empty: containers may
    be getting devices now."""
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: devices or (ONE,)})
        await until(lambda: made.connected()[R])
        for now in (0.0, 10.0, 20.0):
            made.apply({R: devices}, Advertised({R: had}, at=now))
        await until(lambda: len(kubelet.devices.get(R, ())) == len(devices))
        await let_run()
        assert made.connected()[R] and kubelet.registrations == [R]


async def test_a_time_without_devices_counts_anew_after_an_answer_with_them(
    kubelet: FakeKubelet,
) -> None:
    async with registered(kubelet) as made:
        for now, had in ((0.0, {}), (5.0, {R: frozenset({ONE.id})}), (10.0, {}), (19.9, {})):
            made.apply({R: (ONE,)}, Advertised(had, at=now))
        await let_run()
        assert made.connected()[R] and kubelet.registrations == [R]


async def test_a_time_without_devices_counts_from_the_registration(kubelet: FakeKubelet) -> None:
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)}, Advertised({}, at=0.0))
        await kubelet.start()
        await until(lambda: kubelet.is_serving(R) and made.connected()[R])
        made.apply({R: (ONE,)}, Advertised({}, at=10.0))
        await let_run()
        assert made.connected()[R] and kubelet.registrations == [R]


async def test_a_refused_registration_is_tried_again(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    kubelet.refuse_registration = True
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: len(kubelet.registrations) >= 2)
        kubelet.refuse_registration = False
        await until(lambda: kubelet.is_serving(R))


async def test_a_resource_without_devices_is_emptied_first_and_retired_later(
    kubelet: FakeKubelet,
) -> None:
    await kubelet.start()
    now = 0.0
    async with plugins(kubelet, clock=lambda: now) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        made.apply({})
        await until(lambda: kubelet.devices[R] == {})
        assert made.connected() == {R: True}
        now = 301.0
        made.apply({})
        assert made.connected() == {}
        made.apply({R: (TWO,)})
        await until(lambda: kubelet.healthy(R) == {TWO.id})


async def test_a_resources_next_plugin_begins_when_the_last_one_is_gone() -> None:
    said: list[str] = []
    may_end = asyncio.Event()
    now = 0.0
    made = PluginManager(lambda name: Slow(said, may_end), lambda: now)  # type: ignore[arg-type,return-value]
    made.apply({R: (ONE,)})
    await until(lambda: said == ["begin"])
    made.apply({})
    now = 301.0
    made.apply({})
    made.apply({R: (TWO,)})
    await let_run()
    may_end.set()
    await until(lambda: said[-1] == "begin" and len(said) > 1)
    await made.close()
    assert said == ["begin", "end", "begin", "end"]


async def test_a_server_that_does_not_end_holds_up_no_registration(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(stopped: Any, grace: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.1)
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        with monkeypatch.context() as stuck:
            stuck.setattr(type(grpc.aio.server()), "stop", never)
            (socket,) = kubelet.plugin_dir.glob("mizar-*.sock")
            socket.unlink()
            await kubelet.drop_stream(R)
            await until(lambda: len(kubelet.registrations) == 2 and kubelet.is_serving(R))


async def test_a_stream_that_does_not_end_is_not_counted_with_the_next_one(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet reads nothing any more, and the server does not end either."""

    async def never(answer: pb.ListAndWatchResponse) -> None:
        await asyncio.Event().wait()

    streams = Streams()
    monkeypatch.setattr(registration, "Streams", lambda: streams)
    monkeypatch.setattr(registration, "END_TIMEOUT_S", 0.1)
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        stuck = asyncio.create_task(streams.stream(never))
        await until(lambda: len(kubelet.registrations) == 2)
        await until(lambda: kubelet.is_serving(R) and made.connected()[R])
        assert not stuck.done()
        made.apply({R: (ONE, TWO)})
        await until(lambda: len(kubelet.healthy(R)) == 2)
        assert len(kubelet.registrations) == 2
        stuck.cancel()


async def test_a_removed_socket_is_made_anew(kubelet: FakeKubelet) -> None:
    await kubelet.start()
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
        (socket,) = kubelet.plugin_dir.glob("mizar-*.sock")
        socket.unlink()
        await kubelet.drop_stream(R)
        await until(lambda: not kubelet.is_serving(R))
        await until(lambda: kubelet.is_serving(R))


def test_the_sockets_of_a_killed_agent_go_and_those_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mizar-0.sock").mkdir()
    for name in ("mizar-1.sock", "mizar-2.sock", "kubelet.sock", "nvidia-gpu.sock"):
        (tmp_path / name).touch()
    server.remove_old_sockets(tmp_path)
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {"mizar-0.sock", "kubelet.sock", "nvidia-gpu.sock"}, "no folder is removed"


async def test_a_socket_that_is_removed_while_its_server_begins_is_made_anew(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that starts at that moment removes the socket."""
    kind = type(grpc.aio.server())
    begin, removed = kind.start, []

    async def begin_and_lose(made: Any) -> None:
        await begin(made)
        if not removed:
            removed.extend(kubelet.plugin_dir.glob("mizar-*.sock"))
            removed[0].unlink()

    await kubelet.start()
    monkeypatch.setattr(kind, "start", begin_and_lose)
    async with plugins(kubelet) as made:
        made.apply({R: (ONE,)})
        await until(lambda: kubelet.is_serving(R))
    assert len(removed) == 1
