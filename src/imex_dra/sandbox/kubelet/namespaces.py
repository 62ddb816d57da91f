"""The namespaces that confine a simulated container, and whether this machine lets us have them.

Asked before racks are started: otherwise they come up, and their first pod fails.
"""

import subprocess

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes.binaries import find

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--uts", "--ipc", "--fork")


def expect() -> None:
    find(UNSHARE[0])
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Misconfigured(
            f"containers can't be confined here ({tried.stderr.strip()}): allow unprivileged user namespaces"
            " (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0), or start the racks as root"
        )
