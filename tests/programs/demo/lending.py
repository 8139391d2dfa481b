"""The second part of the demo: a card that its owner does not use is lent, and taken back when the
owner wakes."""

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
"""A program with at least this percent of a card's time counts as having all of it."""


@dataclass
class Lending:
    """One run of the second part on a cluster that has Mizar and a free card."""

    kube: Kube
    tell: Narrator

    def play(self) -> None:
        """Run every step in order. Raises AssertionError if a check fails."""
        model = self.see_owner_fall_asleep()
        train = self.see_card_lent()
        self.see_owner_wake(model, train)
        self.see_card_lent_again(train)

    def see_owner_fall_asleep(self) -> str:
        """An idle pod holds a card that it agreed to lend."""
        with self.tell.step("A model that holds a card, and sleeps between requests") as step:
            self.tell.show(self.kube.run("apply", f"--filename={EXAMPLE}"))
            model = wait_for("the model to run", lambda: self._running(OWNER, "app=model"))
            wait_for("the model to sleep", lambda: self._is_asleep(model))
            step.seen = f"{model} has agreed to lend its card while it sleeps (low-power)"
        return model

    def see_card_lent(self) -> str:
        """A spot pod borrows the card, and gets all of its time."""
        with self.tell.step("A training that has no card of its own borrows the model's") as step:
            train = wait_for("the training to run", lambda: self._running(BORROWER, JOB))
            percent = wait_for("it to have the card", lambda: self._has_card(train))
            self.tell.show(self.kube.run("get", "gpupool", POOL))
            step.seen = f"{train} runs on it, with {percent:.0f} % of the card's time"
        return train

    def see_owner_wake(self, model: str, train: str) -> None:
        """The owner gets a request: it has its card again, and the borrower is evicted."""
        with self.tell.step("A request comes in: the model has its card back") as step:
            percent = wait_for("a request to have the card", lambda: self._answered(model))
            self.kube.wait_gone("pod", BORROWER, train)
            self.tell.show(wait_for("the reason", lambda: self._why_evicted(train)))
            step.seen = f"the request had {percent:.0f} % of the card; {train} was evicted"

    def see_card_lent_again(self, before: str) -> None:
        """The owner is asleep once more, and its card goes to the Job's next pod."""
        with self.tell.step("The model sleeps again: the training's next pod goes on") as step:
            train = wait_for("the Job's next pod", lambda: self._running(BORROWER, JOB, before))
            step.seen = f"{train} runs on the same card, until the next request"

    def _is_asleep(self, model: str) -> bool:
        """Whether the owner's pod is marked as asleep."""
        pod = self.kube.get("pod", model, OWNER) or {}
        return bool(condition(pod, "mizar.share/active")["status"] == "False")

    def _has_card(self, train: str) -> float | None:
        """Percent of the card's time that the pod had in the last second; None if that is not all
        of it."""
        answer = self.kube.run("logs", train, f"--namespace={BORROWER}", "--tail=1")
        percents = _percents(answer)
        return percents[-1] if percents and percents[-1] > FULL else None

    def _answered(self, model: str) -> float | None:
        """Percent of the card's time that a request had in its last second; None if that is not all
        of it, as on a machine that is too busy to launch the kernels in time."""
        status, answer = self.kube.exec(OWNER, model, *REQUEST)
        self.tell.show(answer)
        assert status == 0, "the model could not work on its card"
        percents = _percents(answer)
        return percents[-1] if percents and percents[-1] > FULL else None

    def _why_evicted(self, train: str) -> str | None:
        """The message of the eviction event; events outlive their pods."""
        found = self.kube.events(BORROWER, train)
        return next((message for reason, message in found if reason == "SpotEvicted"), None)

    def _running(self, tenant: str, selector: str, but: str = "") -> str | None:
        """The name of a running pod other than `but`."""
        pods = self.kube.all("pods", tenant, selector)
        names = [one["metadata"]["name"] for one in pods if is_ready(one)]
        return next((name for name in names if name != but), None)


def _percents(answer: str) -> list[float]:
    """How busy a program's kernels kept the card in each second, from the output of cuda-sample."""
    return [float(line.split()[1]) for line in answer.splitlines() if line.startswith("busy")]
