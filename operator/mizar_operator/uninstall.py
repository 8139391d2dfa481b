"""The check before an uninstall, which is refused while shadow pods hold cards or spot pods borrow
some: without Mizar, nothing would free these cards.

The chart runs it before helm removes anything: `python -m mizar_operator.uninstall`. With `--hold`
it refuses nothing, but waits until Mizar may go: Argo CD does not rely on checks that fail.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from mizar_core.names import LABEL_SPOT_POD
from mizar_core.pod_requests import spot_cards_requested
from mizar_core.quantities import first_of
from mizar_kube import logs
from mizar_kube import settings as common
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError, KubeError, NotFound, NotServed
from mizar_kube.kinds import DEPLOYMENT, GPU_QUOTA, POD, SHADOW_POD, Kind, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.settings import load
from mizar_kube.store import key_of

# Not __name__, which is __main__ here.
log = get_logger("mizar_operator.uninstall")

PAUSE_S = 1.0
"""Seconds between two lists of the shadow pods that are left."""
HOLD_PAUSE_S = 10.0
"""Seconds between two looks at who holds cards, while the uninstall is held."""
SAID_AGAIN_S = 180.0
"""Seconds after which the reasons why an uninstall is held are printed again if they stay the
same."""
NAMED = 3
"""The most pods that a refusal names."""


class Settings(common.Settings):
    """Says whether shadow pods still hold cards: exit code 0 if none does, 1 if some do."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-uninstall")

    namespace: str = Field(
        "mizar-system",
        description=f"namespace of the release; {common.IF_NAMESPACE_UNSET}",
    )
    release: str = Field("mizar", description="name of the helm release")
    revision: int = Field(1, description="revision of the helm release")
    deployment: str = Field("mizar-operator", description="name of the operator's Deployment")
    wait: float = Field(
        60.0, ge=0, description="seconds to wait for shadow pods that are being deleted"
    )
    hold: bool = Field(
        False, description="wait, for as long as it takes, until nobody holds or borrows a card"
    )


@dataclass(frozen=True)
class Held:
    """A shadow pod that exists. `name`: its namespace/name. `going`: whether it is deleted as soon
    as it is unused. `users`: the pods that hold a device of it, as namespace/name."""

    name: str
    going: bool
    users: frozenset[str] = frozenset()


async def still_held(client: KubeClient, wait: float, clock: Callable[[], float]) -> list[Held]:
    """The shadow pods that are left after at most `wait` seconds. Does not wait if there is none,
    or if one would stay even when unused. Raises KubeError if the API server never answers."""
    deadline = clock() + wait
    while True:
        try:
            held = await _held(client)
        except KubeError as error:
            if clock() >= deadline:
                raise
            log.info("the shadow pods could not be listed", error=error)
        else:
            if not all(one.going for one in held) or not held or clock() >= deadline:
                return held
            log.info("waiting for shadow pods to be deleted", count=len(held))
        await asyncio.sleep(PAUSE_S)


async def _held(client: KubeClient) -> list[Held]:
    shadows = await _all(client, SHADOW_POD)
    if not shadows:
        return []
    staying = {
        key_of(one) for one in await _all(client, GPU_QUOTA) if not one["metadata"].get(_DELETED)
    }
    return [_as_held(one, staying) for one in shadows]


_DELETED = "deletionTimestamp"


async def _all(client: KubeClient, kind: Kind) -> list[Object]:
    """All objects of a kind; none where the kind's definition has been removed."""
    try:
        return (await client.list(kind)).items
    except (NotFound, NotServed):
        return []


def _as_held(shadow: Object, staying: set[tuple[str, str]]) -> Held:
    namespace, name = key_of(shadow)
    quota = str((shadow.get("spec") or {}).get("quota", ""))
    devices = (shadow.get("status") or {}).get("devices") or ()
    holders = (one.get("holder") for one in devices)
    return Held(
        f"{namespace}/{name}",
        bool(shadow["metadata"].get(_DELETED)) or (namespace, quota) not in staying,
        frozenset(f"{one['namespace']}/{one['name']}" for one in holders if one),
    )


async def start_operator(client: KubeClient, settings: Settings) -> str:
    """The command that starts the operator, without which no shadow pod is deleted; empty if it
    runs, or if that is not known."""
    try:
        found = await client.get(Ref(DEPLOYMENT, settings.deployment, settings.namespace))
    except NotFound:
        again = "install Mizar again" if settings.hold else _rollback(settings)
        return f"{again}  # the operator is gone, and only it deletes them"
    except KubeError as error:
        log.info("the operator's Deployment could not be read", error=error)
        return ""
    if (found.get("status") or {}).get("readyReplicas"):
        return ""
    scale = f"kubectl scale deployment {settings.deployment} --namespace {settings.namespace}"
    return f"{scale} --replicas=1  # it is not running, and only it deletes them"


def refusal(held: Sequence[Held], settings: Settings, start: str = "") -> str:
    """Why Mizar is not uninstalled, and what to do. `start`: the command that starts the operator
    first; empty if it runs."""
    where = f"{settings.release} --namespace {settings.namespace}"
    why = [
        f"Mizar is not uninstalled, since {_who_holds(held)}. Everything keeps running.",
        "To uninstall it:",
        *(f"  {line}" for line in _steps(held, start)),
    ]
    if settings.hold:
        return "\n".join([*why, _GOES_ON])
    return "\n".join(
        [
            *why,
            f"  helm uninstall {where}",
            "To leave shadow pods, their cards and their users as they are, for a later install:",
            f"  helm uninstall {where} --no-hooks",
            "To keep Mizar, roll the release back, or helm refuses upgrades:",
            f"  {_rollback(settings)}",
        ]
    )


_GOES_ON = "Then the uninstall goes on."


def _rollback(settings: Settings) -> str:
    """The command that makes helm upgrade the release again after an uninstall that failed."""
    return f"helm rollback {settings.release} {settings.revision} --namespace {settings.namespace}"


def _who_holds(held: Sequence[Held]) -> str:
    used = [one for one in held if one.users]
    users = sorted({user for one in used for user in one.users})
    by = f" by {first_of(users, NAMED)}" if users else ""
    if len(held) == 1:
        return f"1 shadow pod holds cards, {'' if used else 'not '}in use{by}"
    return f"{len(held)} shadow pods hold cards, {len(used) or 'none'} of them in use{by}"


def _steps(held: Sequence[Held], start: str) -> list[str]:
    steps = ["kubectl get shadowpods --all-namespaces  # wait until it shows none"]
    if any(one.users for one in held):
        steps.insert(0, "end the pods that use them")
    if not all(one.going for one in held):
        steps.insert(0, "kubectl delete gpuquota --all --all-namespaces")
    return [start, *steps] if start else steps


async def borrowers(client: KubeClient, wait: float, clock: Callable[[], float]) -> list[str]:
    """The spot pods that have a node and have not ended, as namespace/name. Asks again for at most
    `wait` seconds. Raises KubeError if the API server does not answer by then."""
    deadline = clock() + wait
    while True:
        try:
            found = (await client.list(POD, label_selector=f"{LABEL_SPOT_POD}=true")).items
            return sorted("/".join(key_of(one)) for one in found if _borrows(one))
        except KubeError as error:
            if clock() >= deadline:
                raise
            log.info("the spot pods could not be listed", error=error)
        await asyncio.sleep(PAUSE_S)


def _borrows(pod: Object) -> bool:
    """Whether it has a node, has not ended, and requests cards: any user can give a pod the
    label."""
    spec, phase = pod["spec"], (pod.get("status") or {}).get("phase")
    runs = bool(spec.get("nodeName")) and phase not in ("Succeeded", "Failed")
    return runs and spot_cards_requested(spec) > 0


def borrowed(pods: Sequence[str], settings: Settings) -> str:
    """Why Mizar is not uninstalled while pods borrow cards, and what to do; empty if none does."""
    if not pods:
        return ""
    where = f"{settings.release} --namespace {settings.namespace}"
    why = [
        f"Mizar is not uninstalled, since {first_of(pods, NAMED)} borrow cards, which would never"
        " go back to their owners. Everything keeps running.",
        "To uninstall it:",
    ]
    wait = (
        f"  kubectl get pods --all-namespaces --selector {LABEL_SPOT_POD}=true"
        "  # wait until none has a node"
    )
    if settings.hold:
        end = "  end these pods and what creates them"
        return "\n".join([*why, end, wait, _GOES_ON])
    return "\n".join(
        [
            *why,
            f"  {_rollback(settings)}  # otherwise helm refuses to upgrade",
            f"  helm upgrade {settings.release} CHART --namespace {settings.namespace}"
            " --reset-then-reuse-values --set spot.enabled=false  # takes them back",
            wait,
            f"  helm uninstall {where}",
        ]
    )


async def check(settings: Settings) -> str:
    """Why Mizar must stay; empty if it may go. Raises ConfigError, KubeError."""
    clock = asyncio.get_running_loop().time
    async with await KubeClient.connect(settings.kubeconfig) as client:
        if settings.hold:
            await hold(client, settings, clock)
            return ""
        return await _reasons(client, settings, settings.wait, clock)


async def _reasons(
    client: KubeClient, settings: Settings, wait: float, clock: Callable[[], float]
) -> str:
    deadline = clock() + wait
    held = await still_held(client, wait, clock)
    if held:
        return refusal(held, settings, await start_operator(client, settings))
    left = max(0.0, deadline - clock())
    return borrowed(await borrowers(client, left, clock), settings)


async def hold(client: KubeClient, settings: Settings, clock: Callable[[], float]) -> None:
    """Return once Mizar may go. Until then, print why it must stay: when that has changed, and
    again after SAID_AGAIN_S."""
    said, at = "", 0.0
    while True:
        try:
            problem = await _reasons(client, settings, 0.0, clock)
        except KubeError as error:
            problem = _unknown(error)
        if not problem:
            return
        if problem != said or clock() - at >= SAID_AGAIN_S:
            said, at = problem, clock()
            print(problem, file=sys.stderr, flush=True)
        await asyncio.sleep(HOLD_PAUSE_S)


def _unknown(error: Exception) -> str:
    return f"Mizar is not uninstalled: cannot tell whether shadow pods hold cards: {error}"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the check. Exits with code 1 and the reasons if Mizar must stay; with `hold`,
    prints them and ends when it may go."""
    settings = load(Settings, argv)
    logs.set_up(settings.log_level, settings.log_format)
    try:
        problem = asyncio.run(check(settings))
    except (ConfigError, KubeError) as error:
        problem = _unknown(error)
    if problem:
        sys.exit(problem)
    log.info("no shadow pod holds cards, and no spot pod borrows one")


if __name__ == "__main__":
    main()
