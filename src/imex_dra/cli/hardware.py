"""The flag `--hardware`: NVML, or a type that another distribution adds.

Other distributions add types through the entry point group `imex.hardware`: a callable with a directory as its
argument. The flag has no environment variable, so that the environment cannot switch a production node to
simulated hardware by accident.
"""

from importlib.metadata import entry_points
from pathlib import Path

import click

from imex_dra.hardware.nvml import NvmlHardware
from imex_dra.hardware.protocol import Hardware

GROUP = "imex.hardware"


class HardwareType(click.ParamType[Hardware]):
    name = "type[:directory]"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> Hardware:
        kind, _, directory = str(value).partition(":")
        if kind == "nvml":
            return NvmlHardware(Path(directory or "/"))
        for entry in entry_points(group=GROUP, name=kind):
            if not directory:
                self.fail(f"{kind} needs a directory: --hardware {kind}:<directory>", param, context)
            hardware: Hardware = entry.load()(Path(directory))
            return hardware
        known = ["nvml", *sorted(entry.name for entry in entry_points(group=GROUP))]
        hint = "" if "simulated" in known else "; simulated hardware needs the package imex-sandbox"
        raise click.BadParameter(
            f"unknown hardware type {kind!r}; known types: {', '.join(known)}{hint}", context, param
        )


hardware_option = click.option(
    "--hardware",
    type=HardwareType(),
    default="nvml",
    show_default=True,
    allow_from_autoenv=False,
    help=(
        "nvml[:ROOT] reads the GPU driver of the host whose root directory is mounted at ROOT; with the package"
        " imex-sandbox, simulated:DIR reads a simulated node's directory."
    ),
)
