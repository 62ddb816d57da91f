"""Whether anything else on the node hands out channels behind our back.

A channel isolates only as long as nobody gets one without us. Three ways round us can be seen on a node's disk,
and `enforced` claims no more than that none of them was found:

- the NVIDIA container toolkit gives a container the channels that its environment names (NVIDIA_IMEX_CHANNELS),
  or that it mounts by name, unless its configuration says `ignore-imex-channel-requests`;
- a CDI spec of somebody else (the device plugin, `nvidia-ctk`) names a channel: any pod may ask for it;
- a channel's device node on the host is open to everybody (`NVreg_CreateImexChannel0=1`).
"""

import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from imex_dra.api.names import CDI_VENDOR, CHANNEL_DEVICE_DIRECTORY
from imex_dra.api.nvlinknode import Isolation, IsolationState
from imex_dra.hardware.hostroot import inside

_TOOLKITS = {
    "etc/nvidia-container-runtime/config.toml": "usr/bin/nvidia-container-runtime",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml": (
        "usr/local/nvidia/toolkit/nvidia-container-runtime"
    ),
}
"""Configuration and program, as packages and as the GPU operator install them."""

_CDI = ("etc/cdi", "var/run/cdi")
_SPECS = (".json", ".yaml")


class _Features(Struct, frozen=True, rename="kebab"):
    ignore_imex_channel_requests: bool = False


class ToolkitConfig(Struct, frozen=True):
    """The toolkit's own defaults: without a file it believes the environment of every container."""

    from_environment: bool = field(name="accept-nvidia-visible-devices-envvar-when-unprivileged", default=True)
    from_mounts: bool = field(name="accept-nvidia-visible-devices-as-volume-mounts", default=False)
    features: _Features = _Features()


def isolation(root: Path) -> Isolation:
    reasons = [*_toolkits(root), *_specs(root), *_device_nodes(root)]
    return Isolation(IsolationState.OPEN, "; ".join(reasons)) if reasons else Isolation(IsolationState.ENFORCED)


def loophole(config: ToolkitConfig) -> str:
    """How an unprivileged container gets a channel from the toolkit; empty if it can't."""
    if config.features.ignore_imex_channel_requests:
        return ""
    if config.from_environment:
        return "gives every container the channels that its variable NVIDIA_IMEX_CHANNELS names"
    if config.from_mounts:
        return "gives a container the channels that it mounts in /var/run/nvidia-container-devices/imex"
    return ""


def _toolkits(root: Path) -> Iterator[str]:
    for path, program in _TOOLKITS.items():
        try:
            config = msgspec.convert(tomllib.loads(inside(root, path).read_text()), ToolkitConfig)
        except FileNotFoundError:
            if not inside(root, program).exists():
                continue
            config = ToolkitConfig()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            yield f"/{path} can't be read, so the NVIDIA container runtime may hand out channels: {error}"
            continue
        if how := loophole(config):
            yield (
                f"the NVIDIA container runtime {how}: set ignore-imex-channel-requests = true"
                f" under [features] in /{path}"
            )


def _specs(root: Path) -> Iterator[str]:
    for directory in _CDI:
        for path in sorted(inside(root, directory).glob("*")):
            ours = path.name.startswith(f"{CDI_VENDOR}-")
            if (
                not ours
                and path.suffix in _SPECS
                and CHANNEL_DEVICE_DIRECTORY in _text(inside(root, f"{directory}/{path.name}"))
            ):
                yield f"/{directory}/{path.name} offers a channel to every pod that asks for its CDI device"


def _device_nodes(root: Path) -> Iterator[str]:
    for path in sorted(inside(root, CHANNEL_DEVICE_DIRECTORY).glob("channel*")):
        if _mode(path) & stat.S_IWOTH:
            yield (
                f"{CHANNEL_DEVICE_DIRECTORY}/{path.name} exists on the host and everybody may open it: the driver"
                " was loaded with NVreg_CreateImexChannel0=1, or something made it"
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
