"""Memory across real nodes: a process in a container imports what one on another node exported, or is refused."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imex_dra.sandbox.kubernetes import pythonimage
from imex_dra.sandbox.kubernetes.binaries import find
from tests.driver.site import RACK_A, Site, Team

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

EXPORT = """
import sys
from imex_dra.softimex import memory
mine = memory.open_channel().allocate(65536)
mine.write(0, b"written on one node")
print(mine.export().hex(), flush=True)
sys.stdin.read()
"""
REPLACE = """
import os
try:
    os.unlink(os.environ["IMEX_CLIENT_SOCKET"])
except OSError as error:
    print(error.strerror)
"""
IMPORT = """
import sys
from imex_dra.softimex import memory
try:
    theirs = memory.open_channel().attach(bytes.fromhex(sys.argv[1]))
    print(theirs.read(0, 19).decode())
    theirs.write(0, b"read and rewritten.")
except memory.CudaError as error:
    print(error.code, error.why)
"""


@contextmanager
def exported(site: Site, team: Team, pod: str) -> Iterator[str]:
    """A handle that is good as long as the process in the pod lives."""
    process = subprocess.Popen(
        [find("kubectl"), "-n", team.name, "exec", "-i", pod, "-c", "main", "--", "python3", "-c", EXPORT],
        env={**os.environ, "KUBECONFIG": str(site.control_plane.kubeconfig())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        handle = process.stdout.readline().strip() or "nothing"
        assert len(handle) == 128, f"{handle}\n{site.logs()}"
        yield handle
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=60)


def attempt(team: Team, pod: str, handle: str, container: str = "main") -> str:
    return team.kubectl("exec", pod, "-c", container, "--", "python3", "-c", IMPORT, handle).strip()


def test_memory_is_shared_inside_a_domain_and_with_nobody_else(site: Site, team: Team) -> None:
    for domain in ("train", "other"):
        team.domain(domain)
    pods = {
        "exporter": ("a0", "train"),
        "importer": ("a1", "train"),
        "stranger": ("a1", "other"),
        "far": ("b0", "train"),
    }
    for name, (node, domain) in pods.items():
        team.pod(name, node, template=domain, image=pythonimage.IMEX, extra=["bystander"])
    team.until_running(*pods)
    site.until(lambda: site.is_whole(RACK_A))
    with exported(site, team, "exporter") as handle:
        assert attempt(team, "importer", handle) == "written on one node"
        assert attempt(team, "importer", handle) == "read and rewritten."
        assert attempt(team, "stranger", handle).startswith("800 ")
        assert attempt(team, "far", handle).split()[0] in ("400", "801")
        assert attempt(team, "importer", handle, "bystander").startswith("801 IMEX_CLIENT_SOCKET is not set")
    site.until(lambda: attempt(team, "importer", handle).startswith("400 "))


def restart_imex(site: Site, name: str) -> None:
    """As a crash does it: the socket that it leaves behind is stale."""
    lock = site.drivers[name].node.root / "run/imex.lock"
    killed = lock.read_text()
    site.drivers[name].node.machine.run("kill", "-9", killed.strip())
    site.until(lambda: lock.read_text() not in ("", killed))


def test_containers_find_the_daemon_that_comes_after_a_restart(site: Site, team: Team) -> None:
    team.domain("train")
    for name, node in (("exporter", "a0"), ("importer", "a1")):
        team.pod(name, node, template="train", image=pythonimage.IMEX)
    team.until_running("exporter", "importer")
    with exported(site, team, "exporter") as handle:
        restart_imex(site, "a1")
        site.until(lambda: attempt(team, "importer", handle).startswith(("written", "read")), within=60)
        restart_imex(site, "a0")
        site.until(lambda: attempt(team, "importer", handle).startswith("400 "), within=60)
    site.until(lambda: attempt(team, "exporter", handle).startswith("400 "), within=60)
    with exported(site, team, "exporter") as handle:
        site.until(lambda: attempt(team, "importer", handle).startswith(("written", "read")), within=60)


def test_a_container_can_t_put_itself_in_the_daemon_s_place(team: Team) -> None:
    team.domain("train")
    team.pod("p", "a0", template="train", image=pythonimage.IMEX)
    team.until_running("p")
    assert (
        team.kubectl("exec", "p", "-c", "main", "--", "python3", "-c", REPLACE).strip() == "Read-only file system"
    )
