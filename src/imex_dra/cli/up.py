"""`imex up`."""

from pathlib import Path

import click

from imex_dra.base.logging import configure
from imex_dra.hardware.profiles import PROFILES
from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster import detached, running
from imex_dra.sandbox.cluster.settings import Options
from imex_dra.sandbox.kubelet import namespaces, standins
from imex_dra.sandbox.kubernetes import binaries

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(
    name="up",
    help="""Run simulated racks on a real control plane, on this machine, with the driver on every node.

    \b
    Try:
      imex up --racks 2                  # two GB200 NVL72 racks, 36 nodes; Ctrl-C ends them
      export KUBECONFIG=...              # in another shell: imex up prints this line
      kubectl get nodes -L nvidia.com/gpu.clique

    CLUSTER is a file instead of --racks and --profile, for racks that differ:

    \b
      apiVersion: sandbox.imex-dra.io/v1
      kind: Cluster
      racks:
      - {name: a, profile: gb200-nvl72}
      - {name: b, profile: gb300-nvl72, nodes: 9, partitions: [4, 5]}

    Nothing of it touches ~/.kube/config, and nothing is left when it ends but logs.""",
)
@click.argument("cluster", type=_FILE, required=False)
@click.option(
    "--racks", "count", type=click.IntRange(1, racks.MAX_RACKS), help="How many equal racks.  [default: 1]"
)
@click.option("--profile", type=click.Choice(list(PROFILES)), help="What each of them is.  [default: gb200-nvl72]")
@click.option("--name", help="Tells clusters apart that run side by side.  [default: the file's, or imex]")
@click.option(
    "--control-plane",
    type=click.Choice(["kubernetes"]),
    default="kubernetes",
    show_default=True,
    help="Whose API server, scheduler and controllers.",
)
@click.option("--detach", is_flag=True, help="Return when it is ready; imex down ends it.")
@click.option(
    "--processes", is_flag=True, help="Each program of each node in a process of its own: slower, larger."
)
@click.option("--no-driver", is_flag=True, help="Nodes only.")
@click.option("--hollow", is_flag=True, help="Containers that only pretend to run: for hundreds of nodes.")
@click.option("--stand-ins", type=_FILE, help="Rules for what runs instead of an image or a command.")
def command(
    cluster: Path | None,
    count: int | None,
    profile: str | None,
    name: str | None,
    control_plane: str,
    detach: bool,
    processes: bool,
    no_driver: bool,
    hollow: bool,
    stand_ins: Path | None,
) -> None:
    options = Options(
        cluster=_cluster(cluster, count, profile, name),
        driver=not no_driver,
        apart=processes,
        hollow=hollow,
        rules=standins.load(stand_ins) if stand_ins else (),
    )
    binaries.expect((*binaries.TOOLS, *binaries.CONTROL_PLANE))
    if not hollow:
        namespaces.expect()
    if detach:
        detached.start(options)
    else:
        configure("warning")
        running.run(options)


def _cluster(file: Path | None, count: int | None, profile: str | None, name: str | None) -> racks.Cluster:
    if file is None:
        return racks.of_racks(count or 1, profile or "gb200-nvl72", name=name or "imex")
    if count is not None or profile is not None:
        raise click.UsageError("a file says itself which racks there are: leave out --racks and --profile")
    return racks.named(racks.load(file), name)
