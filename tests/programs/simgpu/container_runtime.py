"""A stand-in for NVIDIA's container runtime: before runc makes a container, it adds the simulated
cards that the container's specification names, without checking them.

    python -m simgpu.container_runtime create --bundle DIR ...

Cards are named by mounts under /var/run/nvidia-container-devices if there are any, otherwise by the
variable NVIDIA_VISIBLE_DEVICES, as with accept-nvidia-visible-devices-as-volume-mounts. `script`
makes the program that the node's runtime calls instead of runc or crun."""

import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from simgpu.machine import CONTROL_NODES, Machine

DIRECTORY = Path("/run/simgpu")
MARKS = PurePosixPath("/var/run/nvidia-container-devices")
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""As the name of a mount: mounts name no cards. nvidia-ctk 1.20.2 has it beside its CDI devices."""
NOTHING = ("", VOID, "none")

Spec = dict[str, Any]


def script(python: str, runtime: str = "runc") -> str:
    """A shell script that runs `runtime` after this module has changed the container's
    specification."""
    return f"""\
#!/bin/sh
case " $* " in
*" create "*) {python} -m simgpu.container_runtime "$@" || exit 1 ;;
esac
exec {runtime} "$@"
"""


def wanted(spec: Spec, uuids: Iterable[str]) -> list[str]:
    """The UUIDs that a container's specification names. Raises KeyError if no card has one of
    them."""
    known = list(uuids)
    marks = [PurePosixPath(one["destination"]) for one in spec.get("mounts", ())]
    names = [mark.name for mark in marks if mark.parent == MARKS]
    if not names or VOID in names:
        env = dict(one.partition("=")[::2] for one in spec["process"].get("env", ()))
        value = env.get(VARIABLE, "")
        names = [] if value in NOTHING else value.split(",")
    if "all" in names:
        return known
    if unknown := set(names) - set(known):
        raise KeyError(f"no card {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def give(
    spec: Spec, uuids: Iterable[str], of_card: Mapping[str, Sequence[str]], directory: Path
) -> None:
    """Add the cards' device nodes and the driver. `of_card`: the names of each card's nodes."""
    nodes = list(dict.fromkeys(node for uuid in uuids for node in of_card[uuid]))
    if not nodes:
        return
    for name in [*nodes, *CONTROL_NODES]:
        _add_device(spec["linux"], f"/dev/{name}", directory / "dev" / name)
    for inside, outside, mode in (
        ("/usr/local/nvidia", directory / "driver", "ro"),
        ("/run/simgpu/state", directory / "state", "rw"),
    ):
        mount = {"destination": inside, "type": "bind", "source": str(outside)}
        spec["mounts"].append({**mount, "options": ["rbind", "rprivate", mode]})


def _add_device(linux: Spec, inside: str, outside: Path) -> None:
    found = outside.stat()
    numbers = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    mode = stat.S_IMODE(found.st_mode)
    devices = linux.setdefault("devices", [])
    devices.append({"path": inside, "type": "c", "fileMode": mode, **numbers})
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    rules.append({"allow": True, "type": "c", "access": "rwm", **numbers})


def main(argv: list[str]) -> None:
    """Change the specification in the bundle that runc's arguments name."""
    path = Path(argv[argv.index("--bundle") + 1]) / "config.json"
    spec = json.loads(path.read_text())
    with Machine(DIRECTORY) as machine:
        nodes = {card.uuid: card.nodes for card in machine.health()}
    give(spec, wanted(spec, nodes), nodes, DIRECTORY)
    path.write_text(json.dumps(spec))


if __name__ == "__main__":
    main(sys.argv[1:])
