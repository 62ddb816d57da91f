"""Containers share memory across nodes if they have the same channel, and a container cannot get another one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imex_sandbox.kubernetes.binaries import find
from tests.driver.cluster import PARTITION_A, DriverCluster
from tests.driver.namespace import Namespace
from tests.sandbox.kubernetes import driverimage

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

EXPORT = """
import sys
from imex_sandbox.softimex import memory
exported = memory.open_channel().allocate(65536)
exported.write(0, b"written on one node")
print(exported.export().hex(), flush=True)
sys.stdin.read()
"""
IMPORT = """
import sys
from imex_sandbox.softimex import memory
try:
    imported = memory.open_channel().import_handle(bytes.fromhex(sys.argv[1]))
    print(imported.read(0, 19).decode())
    imported.write(0, b"read and rewritten.")
except memory.CudaError as error:
    print(error.code, error.reason)
"""
REMOVE_SOCKET = """
import os
try:
    os.unlink(os.environ["IMEX_CLIENT_SOCKET"])
except OSError as error:
    print(error.strerror)
"""


def run_python(namespace: Namespace, pod: str, program: str, *arguments: str, container: str = "main") -> str:
    return namespace.kubectl("exec", pod, "-c", container, "--", "python3", "-c", program, *arguments).strip()


@contextmanager
def exported_memory(cluster: DriverCluster, namespace: Namespace, pod: str) -> Iterator[str]:
    """A handle that is valid as long as the exporting process in the pod lives."""
    process = subprocess.Popen(
        [find("kubectl"), "-n", namespace.name, "exec", "-i", pod, "-c", "main", "--", "python3", "-c", EXPORT],
        env={**os.environ, "KUBECONFIG": str(cluster.control_plane.kubeconfig())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        handle = process.stdout.readline().strip()
        assert len(handle) == 128, f"not a handle: {handle!r}\n{cluster.logs()}"
        yield handle
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=60)


def import_memory(namespace: Namespace, pod: str, handle: str, container: str = "main") -> str:
    """What the memory contains, or the CUDA error."""
    return run_python(namespace, pod, IMPORT, handle, container=container)


def test_memory_is_shared_within_a_computedomain_and_partition_only(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    for domain in ("train", "other"):
        namespace.create_domain(domain)
    pods = {
        "exporter": ("a0", "train"),
        "importer": ("a1", "train"),
        "other-domain": ("a1", "other"),
        "other-partition": ("b0", "train"),
    }
    for name, (node, domain) in pods.items():
        namespace.create_pod(name, node, template=domain, image=driverimage.NAME, extra=["without-claim"])
    namespace.until_running(*pods)
    cluster.until(lambda: cluster.is_connected(PARTITION_A))
    with exported_memory(cluster, namespace, "exporter") as handle:
        # Tests before this one have restarted daemons, which may still be connecting.
        cluster.until(lambda: import_memory(namespace, "importer", handle) == "written on one node")
        assert import_memory(namespace, "importer", handle) == "read and rewritten."
        assert import_memory(namespace, "other-domain", handle).startswith("800 ")
        assert import_memory(namespace, "other-partition", handle).split()[0] in ("400", "801")
        refused = import_memory(namespace, "importer", handle, "without-claim")
        assert refused.startswith("800 IMEX_CLIENT_SOCKET is not set")
    cluster.until(lambda: import_memory(namespace, "importer", handle).startswith("400 "))


def test_running_containers_use_the_imex_daemon_that_was_started_after_a_crash(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    namespace.create_domain("train")
    for name, node in (("exporter", "a0"), ("importer", "a1")):
        namespace.create_pod(name, node, template="train", image=driverimage.NAME)
    namespace.until_running("exporter", "importer")

    def until_imported(handle: str) -> None:
        cluster.until(
            lambda: import_memory(namespace, "importer", handle).startswith(("written", "read")), within=60
        )

    def until_invalid(pod: str, handle: str) -> None:
        cluster.until(lambda: import_memory(namespace, pod, handle).startswith("400 "), within=60)

    with exported_memory(cluster, namespace, "exporter") as handle:
        cluster.kill_imex_daemon("a1")
        until_imported(handle)
        cluster.kill_imex_daemon("a0")
        until_invalid("importer", handle)
    until_invalid("exporter", handle)
    with exported_memory(cluster, namespace, "exporter") as handle:
        until_imported(handle)


def test_a_container_cannot_replace_the_socket_of_the_imex_daemon(namespace: Namespace) -> None:
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train", image=driverimage.NAME)
    namespace.until_running("p")
    assert run_python(namespace, "p", REMOVE_SOCKET) == "Read-only file system"


def test_a_cdi_annotation_in_a_manifest_gives_no_access_to_the_device_of_another_claim(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    """containerd reads CDI devices from annotations too, but only from those that the kubelet sets."""
    namespace.create_domain("train")
    namespace.create_pod("victim", "a0", template="train")
    namespace.until_running("victim")
    (claim,) = cluster.prepared_claims("a0")
    attacker = namespace.pod_manifest("attacker", "a0")
    attacker["metadata"]["annotations"] = {"cdi.k8s.io/attacker": f"imex-dra.io/channel={claim}"}
    attacker["spec"]["resourceClaims"] = []
    attacker["spec"]["containers"][0]["resources"] = {}
    cluster.kubectl.apply(attacker)
    namespace.until_running("attacker")
    assert namespace.channels_in("attacker") == []
    assert namespace.exec("attacker", "ls /run/imex 2>/dev/null; true") == ""


def test_a_container_that_creates_the_device_node_itself_cannot_open_it(namespace: Namespace) -> None:
    """Its device cgroup forbids it; otherwise the channel number would be enough."""
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train", extra=["without-claim"])
    namespace.until_running("p")
    channel = namespace.exec("p", "echo $COMPUTE_DOMAIN_CHANNEL")
    script = f"(mknod /node c 234 {channel} && cat /node) 2>&1; true"
    assert "No such device" in namespace.exec("p", script), "allowed, but the simulated device has no driver"
    assert "Operation not permitted" in namespace.exec("p", script, "without-claim")
