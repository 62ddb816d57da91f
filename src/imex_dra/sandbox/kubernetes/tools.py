"""Programs that a node needs and that are not ours to build: from Debian, unpacked aside.

Where there is no apt, what the machine itself has is used.
"""

import shutil
from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import packages
from imex_dra.sandbox.kubernetes.binaries import find

PACKAGES = ("runc", "containernetworking-plugins", "busybox-static")
PLUGINS = ("bridge", "host-local", "loopback")

_PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/libexec/cni"), Path("/usr/lib/cni"))


def runc() -> Path:
    return _debian() / "usr/sbin/runc" if packages.available() else find("runc")


def busybox() -> Path:
    """Statically linked."""
    return _debian() / "bin/busybox" if packages.available() else find("busybox")


def network_plugins() -> Path:
    """A directory with the CNI plugins that a node uses."""
    candidates = [_debian() / "usr/lib/cni"] if packages.available() else _PLUGIN_DIRECTORIES
    for directory in candidates:
        if all(shutil.which(plugin, path=str(directory)) for plugin in PLUGINS):
            return directory
    raise Misconfigured(
        f"no CNI plugins in {', '.join(map(str, candidates))}: install containernetworking-plugins"
    )


def _debian() -> Path:
    return packages.unpacked("tools", PACKAGES)
