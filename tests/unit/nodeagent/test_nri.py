"""The connection to the container runtime: what is sent on it, and how faults on it are handled."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mizar_kube.backoff import Backoff
from mizar_nodeagent.errors import NotYet
from mizar_nodeagent.nri import rpc, session
from mizar_nodeagent.nri.plugin import RuntimePlugin
from mizar_nodeagent.proto import nri_pb2 as pb
from mizar_nodeagent.proto import ttrpc_pb2 as ttrpc
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_runtime import FakeRuntime, Refused, in_background, running

POD = pb.PodSandbox(name="share", namespace="team-a")


class Answers:
    """What the agent answers about containers, by their name."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.hold = asyncio.Event()

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        match container.name:
            case "refused":
                raise NotYet("its card is not known yet")
            case "bug":
                raise RuntimeError("secret detail")
            case "slow":
                await self.hold.wait()
        return pb.ContainerAdjustment(env=[pb.KeyValue(key="FOR", value=container.name)])

    def look(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        self.found += [f"{pod.name}" for pod in pods] + [one.name for one in containers]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with running(tmp_path / "nri.sock") as made:
        yield made


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def plugin(tmp_path: Path, answers: Answers) -> AsyncIterator[RuntimePlugin]:
    """A plugin that connects, and connects again at once when it is disconnected."""
    made = RuntimePlugin(
        tmp_path / "nri.sock", answers.create, answers.look, Backoff(first=0.001, most=0.001)
    )
    async with in_background(made.run()) as task:
        yield made
        assert not task.done(), "nothing that a runtime does may end the agent"


async def test_it_registers_and_asks_for_new_containers(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    connection = await runtime.connection()
    assert connection.registered.plugin_name == "mizar"
    assert len(connection.registered.plugin_idx) == 2 and connection.registered.plugin_idx.isdigit()
    assert connection.events == 0b1000, "CREATE_CONTAINER is event 4"
    assert not plugin.problem and plugin.runtime == "containerd v2.2.9"


async def test_it_is_not_connected_before_it_knows_the_containers(
    runtime: FakeRuntime, plugin: RuntimePlugin, answers: Answers
) -> None:
    """Until then, the runtime may make a container without asking."""
    connection = await runtime.connections.get()
    await connection.take_registration()
    await connection.call("Configure", pb.ConfigureRequest())
    part = pb.SynchronizeRequest(pods=[POD], containers=[pb.Container(name="a")], more=True)
    await connection.call("Synchronize", part)
    assert plugin.problem
    await connection.call("Synchronize", pb.SynchronizeRequest(containers=[pb.Container(name="b")]))
    assert not plugin.problem
    assert answers.found == ["share", "a", "b"]


async def test_a_container_is_adjusted(runtime: FakeRuntime, plugin: RuntimePlugin) -> None:
    connection = await runtime.connection()
    adjust = await connection.create(POD, pb.Container(name="main"))
    assert [(one.key, one.value) for one in adjust.env] == [("FOR", "main")]


async def test_a_refusal_is_a_sentence(runtime: FakeRuntime, plugin: RuntimePlugin) -> None:
    connection = await runtime.connection()
    with pytest.raises(Refused, match="mizar: its card is not known yet") as found:
        await connection.create(POD, pb.Container(name="refused"))
    assert found.value.code == 9
    assert (await connection.create(POD, pb.Container(name="main"))).env


async def test_a_bug_refuses_that_container_only(
    runtime: FakeRuntime, plugin: RuntimePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await runtime.connection()
    with pytest.raises(Refused, match="see the node agent's log") as found:
        await connection.create(POD, pb.Container(name="bug"))
    assert found.value.code == 13 and "secret" not in str(found.value)
    assert any(
        line["event"] == "a request of the container runtime failed" for line in logged(caplog)
    )
    assert (await connection.create(POD, pb.Container(name="main"))).env


async def test_no_answer_in_time_is_an_error_in_time(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    """Otherwise the runtime drops the plugin and makes the container without asking it."""
    assert rpc.PATIENCE_S == 2.0, "the runtime's default"
    connection = await runtime.connections.get()
    await connection.set_up(patience_ms=20)
    with pytest.raises(Refused, match=r"no answer to CreateContainer within 0\.015 s") as found:
        await connection.create(POD, pb.Container(name="slow"))
    assert found.value.code == 4
    assert not plugin.problem


async def test_a_slow_container_holds_up_no_other(
    runtime: FakeRuntime, plugin: RuntimePlugin, answers: Answers
) -> None:
    connection = await runtime.connection()
    slow = connection.ask(
        "CreateContainer", pb.CreateContainerRequest(container=pb.Container(name="slow"))
    )
    await connection.create(POD, pb.Container(name="main"))
    answers.hold.set()
    _, stream, _, _ = await connection.frame()
    assert stream == slow


async def test_a_method_that_it_does_not_have(runtime: FakeRuntime, plugin: RuntimePlugin) -> None:
    connection = await runtime.connection()
    with pytest.raises(Refused, match="UpdatePodSandbox") as found:
        await connection.call("UpdatePodSandbox", pb.Empty())
    assert found.value.code == 12
    await connection.call("Shutdown", pb.Empty())


async def test_a_long_answer_comes_in_frames_that_the_runtime_reads(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    connection = await runtime.connection()
    adjust = await connection.create(POD, pb.Container(name="x" * 10_000))
    assert len(adjust.env[0].value) == 10_000


async def test_it_is_back_after_the_runtime_was_restarted(
    runtime: FakeRuntime, plugin: RuntimePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await runtime.connection()
    await runtime.stop()
    await until(lambda: plugin.problem)
    assert str(runtime.socket) in plugin.problem
    runtime.socket.unlink(missing_ok=True)
    await until(lambda: "No such file" in plugin.problem)
    await runtime.start()
    connection = await runtime.connection()
    assert not plugin.problem and plugin.connections == 2
    assert (await connection.create(POD, pb.Container(name="main"))).env
    events = [line["event"] for line in logged(caplog)]
    assert events.count("the container runtime is connected") == 2
    assert 1 <= events.count("the container runtime is not connected") < 6, "once for each reason"


BAD = {
    "a frame of 4 GiB": (struct.pack(">II", 1, 2**32 - 1), "4294967295 bytes"),
    "a message of 4 GiB": (
        struct.pack(">II", 1, 10) + struct.pack(">IIBB", 2**32 - 1, 1, 1, 0),
        "4294967295 bytes",
    ),
    "an unknown type": (
        struct.pack(">II", 1, 10) + struct.pack(">IIBB", 0, 1, 9, 0),
        "unknown type 9",
    ),
    "no protobuf": (
        struct.pack(">II", 1, 12) + struct.pack(">IIBB", 2, 1, 1, 0) + b"\xff\xff",
        "no Request could be read",
    ),
    "a request where it asks": (
        struct.pack(">II", 2, 10) + struct.pack(">IIBB", 0, 1, 1, 0),
        "REQUEST on connection 2",
    ),
    "a stream of messages": (
        struct.pack(">II", 1, 10) + struct.pack(">IIBB", 0, 1, 3, 0),
        "DATA on connection 1",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_nonsense_ends_the_connection_not_the_agent(
    runtime: FakeRuntime, plugin: RuntimePlugin, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, sentence = BAD[what]
    connection = await runtime.connection()
    connection.writer.write(data)
    await runtime.connection()
    assert plugin.connections == 2
    problems = [line.get("error", "") for line in logged(caplog)]
    assert any(sentence in problem for problem in problems), problems


async def test_nonsense_in_a_request_refuses_it(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    connection = await runtime.connection()
    bad = ttrpc.Request(
        service="nri.pkg.api.v1alpha1.Plugin", method="CreateContainer", payload=b"\xff\xff"
    )
    connection.put(1, 99, 1, bad.SerializeToString())
    _, _, _, payload = await connection.frame()
    assert "could be read" in ttrpc.Response.FromString(payload).status.message
    assert not plugin.problem


async def test_other_connections_on_the_socket_are_skipped(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    connection = await runtime.connection()
    connection.writer.write(struct.pack(">II", 7, 3) + b"abc")
    assert (await connection.create(POD, pb.Container(name="main"))).env


async def test_a_registration_that_is_refused_is_tried_again(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    first = await runtime.connections.get()
    refusal = ttrpc.Response(status=ttrpc.Status(code=3, message="invalid index"))
    await first.take_registration(refusal)
    await runtime.connection()
    assert plugin.connections == 1


async def test_a_runtime_that_says_nothing_is_left(
    runtime: FakeRuntime, plugin: RuntimePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REGISTERED_WITHIN_S", 0.01)
    first = await runtime.connections.get()
    await until(
        lambda: "has not listed its containers" in plugin.problem or "no answer" in plugin.problem
    )
    assert plugin.problem
    second = await runtime.connections.get()
    assert second is not first


async def test_one_that_closes_at_once_is_noticed_at_once(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    first = await runtime.connections.get()
    await first.take_registration()
    first.writer.close()
    await runtime.connection()
    assert not plugin.problem


@pytest.mark.parametrize("rounds", range(8))
async def test_its_socket_is_closed_however_often_it_is_cancelled(
    runtime: FakeRuntime, tmp_path: Path, answers: Answers, rounds: int
) -> None:
    """`rounds` of the event loop lie between two cancellations."""
    lonely = RuntimePlugin(tmp_path / "nri.sock", answers.create, answers.look)
    async with in_background(lonely.run()) as task:
        connection = await runtime.connection()
        task.cancel()
        for _ in range(rounds):
            await asyncio.sleep(0)
        # in_background cancels it once more.
    with pytest.raises(asyncio.IncompleteReadError):
        await connection.frame()


async def test_another_runtime_at_the_socket_is_not_the_kubelets(
    runtime: FakeRuntime, tmp_path: Path, answers: Answers
) -> None:
    """A runtime that starts takes the socket from the one that has it, such as Debian's containerd
    from that of k3s. It would never ask about the kubelet's containers, which would all be without
    their cards while the agent says that it is connected."""
    own = pb.PodSandbox(name="nodeagent-x", namespace="mizar-system")
    theirs = pb.PodSandbox(name="nodeagent-x", namespace="other")
    made = RuntimePlugin(
        tmp_path / "nri.sock",
        answers.create,
        answers.look,
        Backoff(first=0.001, most=0.001),
        own=("mizar-system", "nodeagent-x"),
        named=(named := []).append,
    )
    async with in_background(made.run()):
        other = await runtime.connections.get()
        with pytest.raises((Refused, asyncio.IncompleteReadError)):
            await other.set_up(pb.SynchronizeRequest(pods=[POD, theirs]))
        await until(lambda: "not the kubelet's" in made.problem)
        assert "mizar-system/nodeagent-x" in made.problem
        assert made.connections == 0 and made.is_foreign and not answers.found
        # The agent tries again, since the kubelet's runtime may be back at any time.
        await runtime.connection(
            pb.SynchronizeRequest(pods=[POD], more=True), pb.SynchronizeRequest(pods=[own])
        )
        assert not (made.problem or made.is_foreign) and made.connections == 1
        assert named == ["containerd v2.2.9"], "the other one's version says nothing"


async def test_without_a_socket_it_says_which(tmp_path: Path, answers: Answers) -> None:
    lonely = RuntimePlugin(tmp_path / "none.sock", answers.create, answers.look)
    async with in_background(lonely.run()):
        await until(lambda: "No such file" in lonely.problem)
        await lonely.wait(within=0.01)
    assert "none.sock" in lonely.problem


async def test_a_wait_for_the_runtime_ends_once_the_agent_is_connected(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    waiting = asyncio.create_task(plugin.wait(within=60 * PATIENCE_S))
    connection = await runtime.connection()
    await until(waiting.done)
    assert not plugin.problem
    connection.writer.close()
    await until(lambda: plugin.problem)


async def test_a_wait_that_begins_while_the_runtime_restarts_ends_once_it_is_connected_again(
    runtime: FakeRuntime, plugin: RuntimePlugin
) -> None:
    """Else the kubelet would try the container's start again only after ten seconds."""
    await runtime.connection()
    await runtime.stop()
    await until(lambda: plugin.problem)
    waiting = asyncio.create_task(plugin.wait(within=60 * PATIENCE_S))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    runtime.socket.unlink(missing_ok=True)
    await runtime.start()
    await runtime.connection()
    await until(waiting.done)
    assert not plugin.problem
