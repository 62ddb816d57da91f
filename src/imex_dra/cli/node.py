"""`imex node`."""

import shlex
from pathlib import Path

import click

from imex_dra.api.names import IMEX_DIRECTORY, IMEX_PAGE, IMEX_PORTS, NODE_PORT
from imex_dra.base.logging import Format
from imex_dra.base.telemetry import Telemetry, observed
from imex_dra.cli.hardware import hardware_option
from imex_dra.cli.running import (
    kubeconfig_option,
    log_format_option,
    log_level_option,
    metrics_option,
    run_until_stopped,
)
from imex_dra.daemon.hostdaemon import DEFAULT_CONFIG, HostConfig, host_ctl_command
from imex_dra.daemon.supervisor import chroot_command
from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.hardware.protocol import Hardware
from imex_dra.imex.ctl import ImexCtl
from imex_dra.kube.client import Client
from imex_dra.node.address import FAMILIES
from imex_dra.node.devices import PUBLISH_AFTER
from imex_dra.node.grant import MAX_CLAIMS
from imex_dra.node.prepare import DEADLINE
from imex_dra.node.program import run

_MANAGED, _HOST_MANAGED = "managed", "host-managed"
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command(
    name="node",
    help="""Publish one node's channel devices, report its NVLinkNode, manage its nvidia-imex, and prepare claims
    for its kubelet.

    Runs on every NVLink node, as a DaemonSet.

    Exits with status 3, without registering with the kubelet, while another driver named
    compute-domain.nvidia.com publishes devices of this node.

    \b
    Examples:
      imex node --node-name r0-n01 --hardware nvml:/host
      imex node --node-name r0-n01 --hardware simulated:/var/lib/imex-simulated --imex-ctl soft-nvidia-imex-ctl""",
)
@click.option("--node-name", required=True, help="Name of the Node object.")
@click.option(
    "--address",
    default="",
    help="IP address on which the node's IMEX daemon listens. Default: the first InternalIP of the Node.",
)
@click.option(
    "--address-family",
    type=click.Choice([*FAMILIES]),
    help="Which InternalIP to use on nodes with both kinds; the same on all nodes.",
)
@click.option(
    "--imex-network",
    type=click.Choice(["host", "pod"]),
    default="host",
    show_default=True,
    help="Network of the IMEX daemon. pod: its address is that of the daemon pod, and changes with it; the same"
    " on all nodes of a partition.",
)
@hardware_option
@click.option(
    "--imex",
    "imex_mode",
    type=click.Choice([_MANAGED, _HOST_MANAGED]),
    default=_MANAGED,
    show_default=True,
    help="Who runs nvidia-imex. host-managed: the host does, and imex node only verifies that it is READY and has"
    " the same node list as the other members; the same on all nodes of a partition.",
)
@click.option(
    "--imex-config",
    default=DEFAULT_CONFIG,
    show_default=True,
    help="With --imex host-managed: the configuration of the host's nvidia-imex, in the driver root.",
)
@click.option(
    "--imex-dir",
    type=_DIRECTORY,
    default=IMEX_DIRECTORY,
    show_default=True,
    help="Directory shared with the supervisor of nvidia-imex, on a tmpfs.",
)
@click.option(
    "--driver-root",
    default="",
    help="Directory on the host that holds the GPU driver as a root file system, with nvidia-imex. Default:"
    " /run/nvidia/driver if it holds a driver, else /.",
)
@click.option(
    "--imex-ctl", default="", help="Command that runs nvidia-imex-ctl. Default: that of the driver root."
)
@click.option(
    "--imex-tls/--no-imex-tls",
    default=None,
    help="Whether IMEX daemons authenticate each other and encrypt; all nodes of a partition must agree. Default:"
    " on with --hardware nvml, off with simulated hardware.",
)
@click.option(
    "--kubelet-dir",
    type=_DIRECTORY,
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Root directory of the kubelet.",
)
@click.option(
    "--cdi-dir",
    type=_DIRECTORY,
    default=Path("/var/run/cdi"),
    show_default=True,
    help="Directory for CDI specs; the container runtime must read it.",
)
@click.option(
    "--prepare-deadline",
    type=click.FloatRange(1, 41),
    default=DEADLINE,
    show_default=True,
    help="Seconds that a prepare may wait. A last read takes up to 3 more, and the kubelet's limit is 45.",
)
@click.option(
    "--max-claims",
    type=click.IntRange(1, 128),
    default=MAX_CLAIMS,
    show_default=True,
    help="Claims that the node can hold at a time, of all ComputeDomains together.",
)
@click.option(
    "--publish-after",
    type=click.FloatRange(min=0),
    default=PUBLISH_AFTER,
    show_default=True,
    help="Seconds after which a node that is ready publishes its devices although it cannot reach every Ready"
    " member.",
)
@kubeconfig_option
@metrics_option(NODE_PORT, IMEX_PAGE)
@log_level_option
@log_format_option
def command(
    node_name: str,
    address: str,
    address_family: str | None,
    imex_network: str,
    hardware: Hardware,
    imex_mode: str,
    imex_config: str,
    imex_dir: Path,
    driver_root: str,
    imex_ctl: str,
    imex_tls: bool | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    prepare_deadline: float,
    max_claims: int,
    publish_after: float,
    kubeconfig: Path | None,
    metrics_address: str,
    log_level: str,
    log_format: Format | None,
) -> None:
    for flag, path in (("--driver-root", driver_root), ("--imex-config", imex_config)):
        if path and not path.startswith("/"):
            raise click.UsageError(f"{flag} {path} is not an absolute path on the host")
    host_managed = imex_mode == _HOST_MANAGED
    if imex_network == "pod" and (host_managed or address or address_family):
        raise click.UsageError(
            "--imex-network pod: the daemon pod has the address; give neither --address,"
            " --address-family nor --imex host-managed"
        )
    host_imex = HostConfig(Path("/"), imex_config) if host_managed else None
    if isinstance(hardware, NvmlHardware):
        hardware = NvmlHardware(
            hardware.root,
            driver_root=driver_root,
            imex_directory=imex_dir,
            host_managed=host_managed,
            # In the network of pods, each daemon has its own.
            ports=() if imex_network == "pod" else IMEX_PORTS,
        )
        ctl = chroot_command(imex_dir, hardware.root, "nvidia-imex-ctl")
        if host_managed:
            root = hardware.root / driver_root.lstrip("/")
            host_imex, ctl = HostConfig(root, imex_config), host_ctl_command(root)
    elif driver_root:
        raise click.UsageError("--driver-root needs --hardware nvml: simulated hardware has no driver root")
    else:
        ctl = ["nvidia-imex-ctl"]

    async def program() -> None:
        telemetry = Telemetry(node=node_name)
        client = Client.connect("imex-node", kubeconfig, metrics=telemetry.metrics)
        try:
            work = run(
                client,
                hardware,
                node=node_name,
                address=address,
                address_family=address_family or "",
                pod_network=imex_network == "pod",
                kubelet=kubelet_dir,
                cdi=cdi_dir,
                imex_directory=imex_dir,
                ctl=ImexCtl(shlex.split(imex_ctl) or ctl),
                host_imex=host_imex,
                imex_tls=isinstance(hardware, NvmlHardware) if imex_tls is None else imex_tls,
                prepare_deadline=prepare_deadline,
                max_claims=max_claims,
                publish_after=publish_after,
                telemetry=telemetry,
            )
            await observed(telemetry, metrics_address, work)
        finally:
            await client.close()

    run_until_stopped(program(), log_level, log_format)
