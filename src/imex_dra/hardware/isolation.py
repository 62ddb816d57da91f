"""Detects whether anything else on the node can give IMEX channels to containers.

Channels isolate ComputeDomains only if this driver is the only one that gives them out. Three ways around it are
visible on the node's disk, and `enforced` means no more than that none of them was found:

- The NVIDIA Container Toolkit gives a container the channels that its environment names (NVIDIA_IMEX_CHANNELS)
  or that it requests by volume mounts, unless its configuration sets `ignore-imex-channel-requests`.
- A CDI spec of another component (the device plugin, `nvidia-ctk`) contains a channel: any pod may request it.
- A channel's device node on the host is world-writable. Channel 0 does not count: with
  `NVreg_CreateImexChannel0=1` the GPU driver itself creates it, and it is never assigned.
"""

import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from imex_dra.api.names import CDI_VENDOR, CHANNEL_DEVICE_DIRECTORY
from imex_dra.api.nvlinknode import Isolation, IsolationState
from imex_dra.api.reasons import listed
from imex_dra.hardware.host import read_text, resolve_in_root

_TOOLKITS = {
    "etc/nvidia-container-runtime/config.toml": "usr/bin/nvidia-container-runtime",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml": (
        "usr/local/nvidia/toolkit/nvidia-container-runtime"
    ),
}
"""Configuration file and executable, as installed by distribution packages and by the GPU Operator."""

_CDI_DIRECTORIES = ("etc/cdi", "var/run/cdi")
_CDI_SUFFIXES = (".json", ".yaml")


class _Features(Struct, frozen=True, rename="kebab"):
    ignore_imex_channel_requests: bool = False


class _ToolkitConfig(Struct, frozen=True):
    """With the defaults of the toolkit: without a configuration file it honors every container's environment."""

    accept_envvar: bool = field(name="accept-nvidia-visible-devices-envvar-when-unprivileged", default=True)
    accept_mounts: bool = field(name="accept-nvidia-visible-devices-as-volume-mounts", default=False)
    features: _Features = _Features()


def detect_isolation(root: Path, *, host_managed: bool = False) -> Isolation:
    """`host_managed`: the host runs nvidia-imex. What else it does with channels is then its own decision, too."""
    reasons = [*_toolkit_reasons(root), *_cdi_reasons(root), *_device_node_reasons(root)]
    reasons += _host_channel_reasons(root) if host_managed else ()
    return Isolation(IsolationState.OPEN, "; ".join(reasons)) if reasons else Isolation(IsolationState.ENFORCED)


def _toolkit_reasons(root: Path) -> Iterator[str]:
    for path, executable in _TOOLKITS.items():
        try:
            content = resolve_in_root(root, path).read_text()
            config = msgspec.convert(tomllib.loads(content), _ToolkitConfig)
        except FileNotFoundError:
            if not resolve_in_root(root, executable).exists():
                continue
            config = _ToolkitConfig()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            yield f"/{path} cannot be read, so the NVIDIA Container Toolkit may give out channels: {error}"
            continue
        if behavior := _channel_injection(config):
            yield (
                f"the NVIDIA Container Toolkit {behavior}: set ignore-imex-channel-requests = true"
                f" under [features] in /{path}"
            )


def _channel_injection(config: _ToolkitConfig) -> str:
    """How an unprivileged container gets a channel from the toolkit; empty if it cannot."""
    if config.features.ignore_imex_channel_requests:
        return ""
    if config.accept_envvar:
        return "gives every container the channels that its variable NVIDIA_IMEX_CHANNELS names"
    if config.accept_mounts:
        return "gives a container the channels that it mounts in /var/run/nvidia-container-devices/imex"
    return ""


def _cdi_reasons(root: Path) -> Iterator[str]:
    for directory in _CDI_DIRECTORIES:
        for path in sorted(resolve_in_root(root, directory).glob("*")):
            if path.suffix not in _CDI_SUFFIXES or path.name.startswith(f"{CDI_VENDOR}-"):
                continue
            if CHANNEL_DEVICE_DIRECTORY in read_text(resolve_in_root(root, f"{directory}/{path.name}")):
                yield (
                    f"/{directory}/{path.name} offers a channel to every pod that requests its CDI device:"
                    " remove the channel from it"
                )


def _device_node_reasons(root: Path) -> Iterator[str]:
    for path in sorted(resolve_in_root(root, CHANNEL_DEVICE_DIRECTORY).glob("channel*")):
        if path.name != "channel0" and _mode(path) & stat.S_IWOTH:
            yield f"{CHANNEL_DEVICE_DIRECTORY}/{path.name} exists on the host and is world-writable: remove it"


def _host_channel_reasons(root: Path) -> Iterator[str]:
    """A workload manager on the host that gives out channels creates their nodes, with a mode of its choice."""
    found = sorted(resolve_in_root(root, CHANNEL_DEVICE_DIRECTORY).glob("channel*"))
    names = [path.name for path in found if path.name != "channel0" and not _mode(path) & stat.S_IWOTH]
    if names:
        yield (
            f"{CHANNEL_DEVICE_DIRECTORY} of the host has {listed(names)}: what created them uses channels that"
            " this driver assigns too; let it use channel 0 only"
        )


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
