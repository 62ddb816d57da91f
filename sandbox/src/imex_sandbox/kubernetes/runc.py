"""Builds the runc of real nodes, on machines that can.

    python -m imex_sandbox.kubernetes.runc

Debian's runc is too old for pods with user namespaces, which need 1.2. Unlike the other programs, runc contains C
and needs libseccomp, which comes from Debian. On a machine without gcc, pkg-config or apt, the runc of the machine
is used, and tests that need a newer one are left out.
"""

import shutil
import sys

import click

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, build, packages

_TOOLS = ("gcc", "pkg-config", "apt-get", "dpkg")


def missing_tools() -> list[str]:
    return [tool for tool in _TOOLS if shutil.which(tool) is None]


def main() -> int:
    if binaries.find_built("runc"):
        return 0
    if missing := missing_tools():
        click.echo(f"runc is not built, because this machine has no {', '.join(missing)}", err=True)
        return 0
    try:
        build.build_runc(_environment())
    except Misconfigured as error:
        click.echo(str(error), err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _environment() -> dict[str, str]:
    """With libseccomp from a directory of extracted packages."""
    root = packages.extract("seccomp", ("libseccomp-dev",))
    (description,) = root.rglob("libseccomp.pc")
    return {
        "CGO_ENABLED": "1",
        "PKG_CONFIG_PATH": str(description.parent),
        "PKG_CONFIG_SYSROOT_DIR": str(root),
    }


if __name__ == "__main__":
    sys.exit(main())
