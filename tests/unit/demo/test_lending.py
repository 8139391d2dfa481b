"""The demo's second act fails where what it is to show does not happen."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from demo import lending
from demo.lending import BORROWER, OWNER, Lending
from demo.narrator import Narrator
from support.kube import Object
from support.waiting import WaitedTooLong, wait_for


def running(name: str, active: str = "False") -> Object:
    conditions = [{"type": "mizar.share/active", "status": active}]
    status = {"phase": "Running", "containerStatuses": [], "conditions": conditions}
    return {"kind": "Pod", "metadata": {"name": name}, "status": status}


class Cluster:
    """A model whose card is lent to a training, until it gets a request."""

    def __init__(self) -> None:
        self.pods = {OWNER: [running("model")], BORROWER: [running("train-1")]}
        self.requests = [(0, "working\nbusy 55.0 %\nbusy 99.0 %\n")]
        self.borrowed = "busy 100.0 %\n"
        self.evicts = True

    def run(self, *arguments: str) -> str:
        return self.borrowed if arguments[0] == "logs" else "shown"

    def all(self, kind: str, tenant: str, selector: str) -> list[Object]:
        return self.pods[tenant]

    def get(self, kind: str, name: str, tenant: str) -> Object | None:
        return next((one for one in self.pods[tenant] if one["metadata"]["name"] == name), None)

    def exec(self, tenant: str, pod: str, *command: str) -> tuple[int, str]:
        if self.evicts:
            self.pods[BORROWER] = [running("train-2")]
        return self.requests.pop(0) if len(self.requests) > 1 else self.requests[0]

    def events(self, tenant: str, name: str) -> list[tuple[str, str]]:
        return [("SpotEvicted", f"{name} loses card GPU-1")]

    def wait_gone(self, kind: str, tenant: str, name: str) -> None:
        if self.get(kind, name, tenant):
            raise WaitedTooLong(f"{name} is still there")


def play(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, patience: float = 0) -> str:
    """All that the act prints. `patience`: seconds for each thing that it waits for."""
    monkeypatch.setattr(lending, "wait_for", lambda what, probe: wait_for(what, probe, patience, 0))
    output = StringIO()
    Lending(cluster, Narrator(Console(file=output))).play()  # type: ignore[arg-type]
    return output.getvalue()


def test_what_a_newcomer_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    said = play(Cluster(), monkeypatch)
    assert "train-1 runs on it, with 100 % of the card's time" in said
    assert "train-1 loses card GPU-1" in said
    assert "the request had 99 % of the card" in said
    assert "train-2" in said


def test_an_owner_that_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.requests = [(0, "busy 99.0 %\nbusy 50.0 %\n")]
    with pytest.raises(WaitedTooLong, match="a request to have the card"):
        play(cluster, monkeypatch)
    cluster = Cluster()
    cluster.requests = [(3, "CUDA_ERROR_OUT_OF_MEMORY\n")]
    with pytest.raises(WaitedTooLong, match="could not work"):
        play(cluster, monkeypatch)


def test_a_machine_that_is_too_busy_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.requests = [(0, "busy 83.7 %\n"), (0, "busy 97.0 %\n")]
    assert "the request had 97 % of the card" in play(cluster, monkeypatch, patience=60)


def test_a_borrower_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.evicts = False
    with pytest.raises(WaitedTooLong, match="train-1"):
        play(cluster, monkeypatch)


def test_a_card_that_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    for borrowed in ("", "working\n", "busy 40.0 %\n"):
        cluster = Cluster()
        cluster.borrowed = borrowed
        with pytest.raises(WaitedTooLong, match="to have the card"):
            play(cluster, monkeypatch)
    awake = Cluster()
    awake.pods[OWNER] = [running("model", active="True")]
    with pytest.raises(WaitedTooLong, match="to sleep"):
        play(awake, monkeypatch)
