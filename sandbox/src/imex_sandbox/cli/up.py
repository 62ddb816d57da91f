"""`imex up`."""

from pathlib import Path

import click

from imex_dra.base.logging import configure
from imex_sandbox import racks
from imex_sandbox.cluster import lifecycle
from imex_sandbox.cluster.settings import CONTROL_PLANES, EMBEDDED, KUBERNETES, Options
from imex_sandbox.kubelet.config import load_stand_ins
from imex_sandbox.kubelet.processes import require_user_namespaces
from imex_sandbox.kubernetes import binaries
from imex_sandbox.kubernetes.build import build
from imex_sandbox.profiles import PROFILES

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)

control_plane_option = click.option(
    "--control-plane",
    type=click.Choice(CONTROL_PLANES),
    default=EMBEDDED,
    show_default=True,
    envvar="IMEX_CONTROL_PLANE",
    show_envvar=True,
    help="embedded: in Python, ready in a second. kubernetes: the real one.",
)


@click.command(
    name="up",
    help="""Run simulated racks on this machine: a control plane, and the driver on every simulated node.

    \b
    Try:
      imex up --racks 2                  # two GB200 NVL72 racks, 36 nodes; Ctrl-C stops them
      export KUBECONFIG=...              # in another shell; imex up prints this line
      kubectl get nodes -L nvidia.com/gpu.clique

    For racks that differ, write a CLUSTER file instead of --racks and --profile:

    \b
      apiVersion: sandbox.imex-dra.io/v1
      kind: Cluster
      racks:
      - {name: a, profile: gb200-nvl72}
      - {name: b, profile: gb300-nvl72, nodes: 9, partitions: [4, 5]}

    The control plane is by default an embedded one in Python, which starts in a second. It is not Kubernetes: it
    has what racks on a laptop need. With --control-plane kubernetes it is the real one; programs that are missing
    are built from source first, which takes minutes, but only once.

    imex up does not change ~/.kube/config. When it stops, it removes everything except logs.""",
)
@click.argument("cluster", type=_FILE, required=False)
@click.option(
    "--racks", "count", type=click.IntRange(1, racks.MAX_RACKS), help="Number of identical racks.  [default: 1]"
)
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Profile of each rack.  [default: gb200-nvl72]")
@click.option(
    "--name",
    help="Name of the cluster. Clusters with different names can run at the same time."
    "  [default: the name in the file, or imex]",
)
@control_plane_option
@click.option("--detach", is_flag=True, help="Run in the background. Return when ready; imex down stops it.")
@click.option(
    "--processes",
    is_flag=True,
    help="Run each program of each node in its own process. This needs more time and memory.",
)
@click.option("--no-driver", is_flag=True, help="Run the nodes without the driver.")
@click.option("--hollow", is_flag=True, help="Do not run containers, only report them as running. For many nodes.")
@click.option("--stand-ins", type=_FILE, help="File with rules for what to run instead of an image or a command.")
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
        control_plane=control_plane,
        driver=not no_driver,
        processes=processes,
        hollow=hollow,
        rules=load_stand_ins(stand_ins) if stand_ins else (),
    )
    binaries.require(binaries.TOOLS)
    if not hollow:
        require_user_namespaces()
    # In the foreground, before anything is started: a build takes minutes and shows its progress.
    if control_plane == KUBERNETES:
        build(binaries.CONTROL_PLANE if hollow else binaries.SIMULATED_CLUSTER)
    if detach:
        lifecycle.start_detached(options)
    else:
        configure("warning")
        lifecycle.run(options)


def _cluster(file: Path | None, count: int | None, profile: str | None, name: str | None) -> racks.Cluster:
    if file is None:
        return racks.of_racks(count or 1, profile or "gb200-nvl72", name=name or "imex")
    if count is not None or profile is not None:
        raise click.UsageError("a CLUSTER file lists its racks: omit --racks and --profile, or omit the file")
    return racks.named(racks.load(file), name)
