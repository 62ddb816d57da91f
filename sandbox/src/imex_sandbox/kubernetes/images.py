"""Container images for real nodes, written as OCI archives. Nothing is pulled from a registry.

imex-dra.io/test/pause:1      keeps the namespaces of a pod
imex-dra.io/test/busybox:1    busybox, statically linked
"""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from imex_sandbox.kubernetes import oci, packages
from imex_sandbox.kubernetes.binaries import cache_root, missing
from imex_sandbox.kubernetes.oci import Image

PAUSE = "imex-dra.io/test/pause:1"
BUSYBOX = "imex-dra.io/test/busybox:1"

_PAUSE_SOURCE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
"""


@cache
def pause() -> Path:
    """Compiled from C. Without a C compiler, the image runs `busybox sleep` instead."""
    with tempfile.TemporaryDirectory() as temporary:
        program = Path(temporary) / "pause"
        compiled = _compile(_PAUSE_SOURCE, program)
        files = {"pause": program} if compiled else {"busybox": packages.busybox()}
        entrypoint = ["/pause"] if compiled else ["/busybox", "sleep", "2147483647"]
        layer = oci.write_layer(Path(temporary) / "layer", files)
        return oci.write(archive("pause"), Image(PAUSE, [layer], entrypoint))


@cache
def busybox() -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        layer = oci.write_layer(Path(temporary) / "layer", *busybox_files())
        return oci.write(archive("busybox"), Image(BUSYBOX, [layer], ["/bin/sh"]))


def busybox_files() -> tuple[dict[str, Path], dict[str, str]]:
    """The program and a link for each of its applets, as arguments for `oci.write_layer`."""
    program = packages.busybox()
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    return {"bin/busybox": program}, links


def _compile(source: str, program: Path) -> bool:
    if missing(["cc"]):
        return False
    command = f"cc -static -Os -s -x c -o {program} -"
    return not subprocess.run(
        command.split(), input=source, capture_output=True, text=True, check=False
    ).returncode


def archive(name: str) -> Path:
    return cache_root() / "images" / f"{name}.tar"
