"""The command line: python -m cluster up | down | status | kubeconfig | kubectl ..."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cluster import cleanup, state
from cluster.binaries import ALL, ensure
from cluster.binaries.progress import Progress
from cluster.errors import ClusterError
from cluster.images import ensure_images
from cluster.interrupts import interruptible_once
from cluster.layout import Layout
from cluster.local_cluster import LocalCluster
from cluster.local_provider import LocalProvider
from cluster.mizar import install
from cluster.processes import Processes
from cluster.spec import ClusterSpec

app = typer.Typer(
    help="A real Kubernetes on this machine, as root, with simulated GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Name = Annotated[str, typer.Option(help="The cluster's name.")]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command()
def up(
    name: Name = "mizar",
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    cards: Annotated[int, typer.Option(help="Simulated cards on each node.")] = 2,
    card_memory: Annotated[int, typer.Option(help="Memory of a card, in MiB.")] = 16384,
    card_model: Annotated[str, typer.Option(help="Label nvidia.com/gpu.product of the nodes.")] = (
        ClusterSpec.card_model
    ),
    mizar: Annotated[bool, typer.Option(help="Install Mizar into it.")] = True,
    cri_o: Annotated[str, typer.Option(help="CRI-O instead of containerd, as in v1.36.3.")] = "",
    dra_nodes: Annotated[
        int, typer.Option(help="Nodes, from the last, with a DRA driver for their cards.")
    ] = 0,
    nvidia_plugin: Annotated[
        str, typer.Option(help="NVIDIA's own device plugin, as in v0.18.2.")
    ] = "",
) -> None:
    """Make a cluster and say how to use it."""
    with _told(), interruptible_once():
        spec = ClusterSpec(
            name,
            nodes,
            cards,
            card_memory,
            card_model,
            mizar,
            cri_o=cri_o,
            dra_nodes=dra_nodes,
            nvidia_plugin=nvidia_plugin,
        )
        cluster = LocalProvider().up(spec, Progress())
        if mizar:
            _install(cluster)
        print(*how_to_use(cluster), sep="\n")


def how_to_use(cluster: LocalCluster) -> list[str]:
    """What to run in a shell so that kubectl and helm speak to the cluster. A machine that has none
    of its own uses the cluster's."""
    missing = [one for one in ("kubectl", "helm") if shutil.which(one) is None]
    aliases = [f"alias {one}={cluster.tool(one)}" for one in missing]
    return [f"export KUBECONFIG={cluster.kubeconfig}", *aliases]


def _install(cluster: LocalCluster) -> None:
    try:
        install(cluster, Progress())
    except BaseException:
        cluster.down()
        raise


@app.command()
def down(
    name: Name = "mizar",
    everything: Annotated[bool, typer.Option("--all", help="Take all clusters down.")] = False,
) -> None:
    """Take a cluster away, also one that was left half made or half dead."""
    with _told():
        provider = LocalProvider()
        for one in provider.names() if everything else [name]:
            if not provider.down(one, Progress()):
                print(f"there is no cluster {one}: nothing to do")


@app.command()
def status(name: Annotated[str, typer.Option(help="Only this cluster.")] = "") -> None:
    """Say which clusters there are, and which of their processes run."""
    with _told():
        names = [name] if name else LocalProvider().names()
        for one in names:
            _describe(Layout(one))
        if not names:
            print("no clusters")


def _describe(layout: Layout) -> None:
    if state.is_locked(layout):
        print(f"{layout.name}: is being made or removed")
    elif state.is_up(layout):
        print(f"{layout.name}: up\n  export KUBECONFIG={layout.kubeconfig}")
    elif left := cleanup.leftovers(layout):
        print(f"{layout.name}: not up, but it left {', '.join(left)}")
        print(f"  clean up with: python -m cluster down --name {layout.name}")
    else:
        print(f"{layout.name}: not there")
    for process, one in Processes(layout).all().items():
        print(f"  {process}: {f'process {one.pid}' if one.alive() else 'has ended'}")


@app.command()
def kubeconfig(name: Name = "mizar") -> None:
    """Print the path of a cluster's kubeconfig."""
    with _told():
        print(LocalProvider().get(name).kubeconfig)


@app.command(context_settings=PASS_ON)
def kubectl(context: typer.Context, name: Name = "mizar") -> None:
    """Run kubectl on a cluster: python -m cluster kubectl -- get pods."""
    with _told():
        cluster = LocalProvider().get(name)
        _become([str(cluster.tool("kubectl")), *context.args], cluster.environment())


@app.command(context_settings=PASS_ON)
def helm(context: typer.Context, name: Name = "mizar") -> None:
    """Run helm on a cluster: python -m cluster helm -- list -A."""
    with _told():
        cluster = LocalProvider().get(name)
        _become([str(cluster.tool("helm")), *context.args], cluster.environment())


@app.command("exec", context_settings=PASS_ON)
def exec_(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The node's name, as in node-1.")],
    name: Name = "mizar",
) -> None:
    """Run a command on a node itself: python -m cluster exec node-1 -- ctr -n k8s.io images ls."""
    with _told():
        cluster = LocalProvider().get(name)
        _become(cluster.entering(node, context.args or ["bash"]), dict(os.environ))


@app.command("load-image")
def load_image(
    archive: Annotated[Path, typer.Argument(help="A docker archive (docker save, buildah push).")],
    name: Name = "mizar",
) -> None:
    """Make the images of an archive known to all nodes of a cluster."""
    with _told():
        LocalProvider().get(name).load_image(archive)


@app.command()
def programs() -> None:
    """Have the programs that clusters consist of, and kubectl and helm, and print where."""
    with _told():
        found = ensure(Progress())
        for program in ALL:
            print(f"{program}  {found.path(program)}")


@app.command()
def images() -> None:
    """Build Mizar's container images, and print where their archives are."""
    with _told():
        for image, archive in ensure_images(Progress()).items():
            print(f"{image}  {archive}")


def _become(argv: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execvpe(argv[0], argv, environment)


@contextmanager
def _told() -> Iterator[None]:
    """Errors that have a sentence for people end the program with that sentence."""
    try:
        yield
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
