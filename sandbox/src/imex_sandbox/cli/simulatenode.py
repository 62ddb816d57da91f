"""`imex simulate-node`: for clusters with simulated hardware, as an init container of the driver's pods."""

from pathlib import Path

import click

from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.profiles import PROFILES
from imex_sandbox.simulated import HardwareFile, SimulatedGpu

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@click.command(
    name="simulate-node",
    help="""Make the directory of a simulated node, with a healthy fabric.

    `imex node --hardware simulated:DIR` and soft IMEX use it. A directory that exists is kept, and so is the state
    of what runs on the node; its hardware becomes healthy again.

    \b
    Try:
      imex simulate-node --directory /var/lib/imex-simulated --address 10.0.0.5 \\
        --partition 88566fd6-f4ee-5833-8b48-22857a117fc1.1""",
)
@click.option(
    "--directory", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to make it."
)
@click.option("--address", required=True, help="IP address on which the node's IMEX daemon listens.")
@click.option("--partition", required=True, help="NVLink partition: <cluster UUID>.<clique ID>.")
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="gb200-nvl72", show_default=True, help="Machine type."
)
def command(directory: Path, address: str, partition: str, profile: str) -> None:
    machine = PROFILES[profile]
    gpus = tuple(SimulatedGpu(f"GPU-{address}-{index}", machine.product) for index in range(machine.gpus))
    hardware = HardwareFile(
        fabric=Fabric(FabricState.OK),
        partition=partition,
        driver_version=machine.driver_version,
        boot_id=_BOOT_ID.read_text().strip(),
        profile=profile,
        gpus=gpus,
    )
    NodeRoot(directory).make(hardware, address=address)
