"""python -m simgpu create|show|fail|heal|...: makes, shows and changes the simulated cards of a
directory."""

import argparse
import sys
from pathlib import Path

from simgpu.machine import DEFAULT_MODEL, MIB, Machine, create
from simgpu.state_file import StateError

DEFAULT_DIRECTORY = Path("/run/simgpu")


def _show(machine: Machine) -> None:
    for card in [*machine.cards, *machine.instances]:
        state = "lost" if card.lost else f"xid {card.xid}" if card.xid else "healthy"
        print(
            f"{card.index}  {card.uuid}  {card.name}  "
            f"{card.used // MIB} / {card.total // MIB} MiB  {state}"
        )
        for process in card.processes:
            print(f"   pid {process.pid or '?'}  {process.memory // MIB} MiB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simgpu", description=__doc__)
    parser.add_argument("--simgpu-dir", type=Path, default=DEFAULT_DIRECTORY)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("create", help="make a machine: state, device nodes, libraries")
    make.add_argument("--cards", type=int, default=2)
    make.add_argument("--memory-mib", type=int, default=16384)
    make.add_argument("--model", default=DEFAULT_MODEL)
    make.add_argument("--seed", default="simgpu", help="the UUIDs follow from it")
    verbs.add_parser("show", help="cards, their memory, who uses them")
    fail = verbs.add_parser("fail", help="raise a critical error on a card")
    fail.add_argument("uuid")
    fail.add_argument("--xid", type=int, default=79)
    for verb, what in (
        ("heal", "call a failed card healthy again"),
        ("remove", "let a card fall off the bus"),
        ("restore", "bring a removed card back"),
    ):
        verbs.add_parser(verb, help=what).add_argument("uuid")
    divide = verbs.add_parser("divide", help="divide a card by MIG, or make it whole again")
    divide.add_argument("uuid")
    divide.add_argument("profiles", nargs="*", metavar="PROFILE", help="such as 1g.5gb")
    strategy = verbs.add_parser("strategy", help="how the device plugin announces MIG instances")
    strategy.add_argument("strategy", choices=("none", "single", "mixed"))
    return parser


def _act(arguments: argparse.Namespace) -> None:
    if arguments.verb == "create":
        create(
            arguments.simgpu_dir,
            arguments.cards,
            arguments.memory_mib,
            arguments.model,
            arguments.seed,
        ).close()
    with Machine(arguments.simgpu_dir) as machine:
        match arguments.verb:
            case "fail":
                machine.set_health(arguments.uuid, arguments.xid)
            case "heal":
                machine.set_health(arguments.uuid, 0)
            case "remove":
                machine.remove(arguments.uuid)
            case "restore":
                machine.restore(arguments.uuid)
            case "divide":
                machine.divide(arguments.uuid, *arguments.profiles)
            case "strategy":
                machine.mig_strategy = arguments.strategy
        _show(machine)


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 1 with the reason on standard error."""
    try:
        _act(_parser().parse_args(argv))
    except (StateError, KeyError, ValueError) as problem:
        print(f"simgpu: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
