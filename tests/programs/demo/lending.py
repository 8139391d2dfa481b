"""The demo's second act: a card that its owner does not use is lent, and comes back at once."""

from dataclasses import dataclass
from pathlib import Path

from demo.narrator import Narrator
from support.kube import Kube, condition, is_ready
from support.waiting import wait_for

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "07-spot"
OWNER, BORROWER, POOL = "inference", "training", "lent"
REQUEST = ["cuda-sample", "busy", "--seconds", "2"]
JOB = "batch.kubernetes.io/job-name=train"
FULL = 90.0
"""Percent of a card's time that a program has at least when it has all of it."""


@dataclass
class Lending:
    """One run of the second act on a cluster that has Mizar, and a card that is free."""

    kube: Kube
    tell: Narrator

    def play(self) -> None:
        """Every step in order; raises AssertionError where something does not hold."""
        model = self.see_owner_fall_asleep()
        train = self.see_card_lent()
        self.see_owner_wake(model, train)
        self.see_card_lent_again(train)

    def see_owner_fall_asleep(self) -> str:
        """A pod that holds a card and has nothing to do, and agreed to lend it meanwhile."""
        with self.tell.step("A model that holds a card, and sleeps between requests") as step:
            self.tell.show(self.kube.run("apply", f"--filename={EXAMPLE}"))
            model = wait_for("the model to run", lambda: self._running(OWNER, "app=model"))
            wait_for("the model to sleep", lambda: self._is_asleep(model))
            step.seen = f"{model} has agreed to lend its card while it sleeps (low-power)"
        return model

    def see_card_lent(self) -> str:
        """A spot pod borrows the card, and has all of its time."""
        with self.tell.step("A training that has no card of its own borrows the model's") as step:
            train = wait_for("the training to run", lambda: self._running(BORROWER, JOB))
            percent = wait_for("it to have the card", lambda: self._has_card(train))
            self.tell.show(self.kube.run("get", "gpupool", POOL))
            step.seen = f"{train} runs on it, with {percent:.0f} % of the card's time"
        return train

    def see_owner_wake(self, model: str, train: str) -> None:
        """The owner gets a request: it has its card, and the borrower is evicted."""
        with self.tell.step("A request comes in: the model has its card back") as step:
            status, answer = self.kube.exec(OWNER, model, *REQUEST)
            self.tell.show(answer)
            percents = _percents(answer)
            assert status == 0 and percents and percents[-1] > FULL, "the owner was held up"
            self.kube.wait_gone("pod", BORROWER, train)
            self.tell.show(wait_for("the reason", lambda: self._why_evicted(train)))
            step.seen = f"the request had {percents[-1]:.0f} % of the card; {train} was evicted"

    def see_card_lent_again(self, before: str) -> None:
        """Asleep once more, its card goes to the Job's next pod."""
        with self.tell.step("The model sleeps again: the training's next pod goes on") as step:
            train = wait_for("the Job's next pod", lambda: self._running(BORROWER, JOB, before))
            step.seen = f"{train} runs on the same card, until the next request"

    def _is_asleep(self, model: str) -> bool:
        """As the model's pod says."""
        pod = self.kube.get("pod", model, OWNER) or {}
        return bool(condition(pod, "mizar.share/active")["status"] == "False")

    def _has_card(self, train: str) -> float | None:
        """Percent of the card's time that it had in its last second; None if that is not all."""
        answer = self.kube.run("logs", train, f"--namespace={BORROWER}", "--tail=1")
        percents = _percents(answer)
        return percents[-1] if percents and percents[-1] > FULL else None

    def _why_evicted(self, train: str) -> str | None:
        """What its event says; events outlive their pods."""
        found = self.kube.events(BORROWER, train)
        return next((message for reason, message in found if reason == "SpotEvicted"), None)

    def _running(self, tenant: str, selector: str, but: str = "") -> str | None:
        """The name of a pod that runs, another one than `but`."""
        pods = self.kube.all("pods", tenant, selector)
        names = [one["metadata"]["name"] for one in pods if is_ready(one)]
        return next((name for name in names if name != but), None)


def _percents(answer: str) -> list[float]:
    """How busy a program's kernels kept the card in each second, as cuda-sample says it."""
    return [float(line.split()[1]) for line in answer.splitlines() if line.startswith("busy")]
