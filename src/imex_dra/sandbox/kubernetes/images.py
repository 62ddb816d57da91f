"""The container images of our tests, as OCI archives that are made here and never pulled from anywhere.

imex-dra.io/test/pause:1      holds a pod's namespaces
imex-dra.io/test/busybox:1    a shell and the usual tools, statically linked
"""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from imex_dra.sandbox.kubernetes import oci, tools
from imex_dra.sandbox.kubernetes.binaries import cache_root, missing
from imex_dra.sandbox.kubernetes.oci import Image

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
    """Compiled; where there is no C compiler, busybox does instead."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "pause"
        compiled = _compile(_PAUSE_SOURCE, program)
        files = {"pause": program} if compiled else {"busybox": tools.busybox()}
        entrypoint = ["/pause"] if compiled else ["/busybox", "sleep", "2147483647"]
        layer = oci.write_layer(Path(scratch) / "layer", files)
        return oci.write(archive("pause"), Image(PAUSE, [layer], entrypoint))


@cache
def busybox() -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        layer = oci.write_layer(Path(scratch) / "layer", *shell())
        return oci.write(archive("busybox"), Image(BUSYBOX, [layer], ["/bin/sh"]))


def shell() -> tuple[dict[str, Path], dict[str, str]]:
    """Files and links of busybox, for a layer: a shell and the usual tools."""
    program = tools.busybox()
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    links = {f"bin/{applet}": "busybox" for applet in listed.split() if applet != "busybox"}
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
