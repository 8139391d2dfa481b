"""The steps of the demo. Each step checks what it shows, and fails if the check fails."""

from dataclasses import dataclass
from pathlib import Path

from demo.narrator import Narrator
from support.kube import Kube, Object, condition, is_ready
from support.objects import SHARE_PODS, whole_card_pod
from support.waiting import wait_for

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "01-quickstart"
TENANT = "team-a"
OVER_THE_LIMIT_MIB = 12_000
IDLE_SECONDS = 5


@dataclass
class Story:
    """One run of the demo on a cluster that has Mizar."""

    kube: Kube
    tell: Narrator
    cards_in_cluster: int

    def play(self) -> None:
        """Run every step in order. Raises AssertionError if a check fails."""
        self.apply_quota()
        shadow = self.see_shadow_pod()
        pods = self.see_pods_share_a_card(shadow)
        self.see_memory_limit(*pods)
        self.see_own_figures(pods)
        self.see_card_come_back(pods)

    def apply_quota(self) -> None:
        """Apply the quick start: tenant, quota and the two share pods."""
        with self.tell.step("Apply examples/01-quickstart") as step:
            self.tell.show(self.kube.run("apply", f"--filename={QUICKSTART}"))
            step.seen = "a tenant with a quota, two pods that each ask for half a card"

    def see_shadow_pod(self) -> Object:
        """Wait for the shadow pod that is created for lack of devices, and show its card."""
        with self.tell.step("A shadow pod takes a card from the stock NVIDIA plugin") as step:
            shadow = wait_for("a ready ShadowPod", self._ready_shadow)
            status = shadow["status"]
            card, devices = status["cards"][0], [one["id"] for one in status["devices"]]
            self.tell.show(self.kube.run("get", "shadowpods", f"--namespace={TENANT}"))
            step.seen = f"holds {card['uuid']}; carved into {', '.join(devices)}"
            assert devices == [f"{TENANT}/{shadow['metadata']['name']}-{i}" for i in range(2)]
        return shadow

    def _ready_shadow(self) -> Object | None:
        for shadow in self.kube.all("shadowpods", TENANT):
            if condition(shadow, "Ready")["status"] == "True":
                return shadow
        return None

    def see_pods_share_a_card(self, shadow: Object) -> list[str]:
        """Both share pods run, on devices of one card."""
        with self.tell.step("Both pods run on that card") as step:
            pods = [one["metadata"]["name"] for one in self.kube.all("pods", TENANT, SHARE_PODS)]
            self.kube.wait_running(TENANT, *pods)
            held = wait_for("both devices to be held", lambda: self._holders(shadow))
            assert sorted(held) == sorted(pods), f"{held} hold the devices, not {pods}"
            self.tell.show(self.kube.run("get", "pods", f"--namespace={TENANT}", "--output=wide"))
            step.seen = f"{' and '.join(sorted(pods))} on {shadow['status']['cards'][0]['uuid']}"
        return sorted(pods)

    def _holders(self, shadow: Object) -> list[str] | None:
        name = shadow["metadata"]["name"]
        devices = (self.kube.get("shadowpod", name, TENANT) or shadow)["status"]["devices"]
        holders = [one["holder"]["name"] for one in devices if one.get("holder")]
        return holders if len(holders) == len(devices) else None

    def see_memory_limit(self, greedy: str, neighbour: str) -> None:
        """An allocation over the limit is refused; the neighbour keeps its memory."""
        with self.tell.step(f"{greedy} asks for {OVER_THE_LIMIT_MIB} MiB, over its half") as step:
            command = ["cuda-sample", "alloc", str(OVER_THE_LIMIT_MIB)]
            status, answer = self.kube.exec(TENANT, greedy, *command)
            self.tell.show(answer)
            assert status != 0 and "CUDA_ERROR_OUT_OF_MEMORY" in answer, "it was not refused"
            assert is_ready(self.kube.get("pod", neighbour, TENANT)), f"{neighbour} fell over"
            step.seen = f"refused with CUDA_ERROR_OUT_OF_MEMORY; {neighbour} keeps its memory"

    def see_own_figures(self, pods: list[str]) -> None:
        """Each pod sees its own part of the card, as nvidia-smi would show it."""
        with self.tell.step("Each pod sees its own share, as nvidia-smi would show it") as step:
            for pod in pods:
                status, answer = self.kube.exec(TENANT, pod, "cuda-sample", "smi")
                assert status == 0, answer
                self.tell.show(f"{pod}:\n{answer}")
            step.seen = "the limit as total, the container's own use as used"

    def see_card_come_back(self, pods: list[str]) -> None:
        """Idle shadow pods are removed; then a pod that wants every whole card runs."""
        with self.tell.step("Pods deleted: the shadow pod idles and is reaped") as step:
            patch = f'{{"spec":{{"idleTimeoutSeconds":{IDLE_SECONDS}}}}}'
            self.kube.run("patch", "gpupool", "default", "--type=merge", f"--patch={patch}")
            self.kube.run("delete", "pods", f"--namespace={TENANT}", *pods)
            wait_for("the shadow pods to go", lambda: not self.kube.all("shadowpods", TENANT))
            step.seen = f"reaped after {IDLE_SECONDS} s without a holder"
        with self.tell.step(f"A pod that asks for all {self.cards_in_cluster} whole cards") as step:
            self.kube.apply(whole_card_pod("default", "whole-cards", self.cards_in_cluster))
            self.kube.wait_running("default", "whole-cards")
            step.seen = "runs: nothing of the cards is held back"
        self.kube.delete("pod", "whole-cards", "default")
