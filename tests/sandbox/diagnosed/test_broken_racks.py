"""What the commands say about a real control plane and a simulated rack that is broken by faults: the cause, and
no other error. A healthy rack has no finding. `tests/diagnose` has one broken cluster per finding, made of plain
objects.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.loading import load_cluster
from imex_dra.diagnose.rules import diagnose
from imex_dra.kube.client import Client
from imex_dra.lint.findings import Severity
from imex_sandbox.faults.kinds import AnyFault, BreakFabric, DropTraffic, HangProcess, PendFabric
from tests.sandbox.failures.rack import SLEEP, Rack, running_rack

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(400)]

N0, N1, N2, N3 = (f"r0-n0{number}" for number in range(4))


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """With a job on two nodes. A test undoes what it breaks, and the next one waits until the rack is healthy."""
    with running_rack() as rack:
        rack.run("train", N0, N1)
        yield rack


@pytest.fixture(autouse=True)
def healthy(rack: Rack) -> None:
    rack.until(lambda: found(rack) == [])


def found(rack: Rack, *severities: Severity) -> list[tuple[str, str]]:
    """Ids and objects of the findings."""

    async def read() -> Cluster:
        client = Client.connect("imex-cli", rack.cluster.kubeconfig)
        try:
            return Cluster(await load_cluster(client))
        finally:
            await client.close()

    findings = diagnose(asyncio.run(read()))
    return [(f.id, f.object) for f in findings if not severities or f.severity in severities]


def imex(rack: Rack, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the output as JSON."""
    flags = [*arguments, "--output=json", f"--kubeconfig={rack.cluster.kubeconfig}"]
    command = [sys.executable, "-m", "imex_dra.cli", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_healthy_rack_passes_every_command(rack: Rack) -> None:
    namespace = rack.namespace.name
    code, status = imex(rack, "status")
    assert (code, status["findings"], status["missing"]) == (0, [], [])
    assert [one["freeNodes"] for one in status["partitions"]] == [[N2, N3]]
    assert [one["status"] for one in status["computeDomains"]] == ["Ready"]
    code, verified = imex(rack, "verify", "-n", namespace)
    assert (code, {check["verdict"] for check in verified["checks"]}) == (0, {"passed"})
    code, explained = imex(rack, "explain", "computedomain/train", "-n", namespace)
    assert (code, {link["state"] for link in explained["links"]}) == (0, {"ok"})
    assert imex(rack, "preflight")[0] == 0


@pytest.mark.parametrize(
    ("fault", "id"),
    [
        (BreakFabric(nodes=(N1,)), "IMEX303"),
        (PendFabric(nodes=(N1,)), "IMEX304"),
        (HangProcess(program="nvidia-imex", nodes=(N1,)), "IMEX306"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_fault_of_a_node_is_the_only_error(rack: Rack, fault: AnyFault, id: str) -> None:
    with rack.injector.during(fault):
        rack.until(lambda: found(rack, Severity.ERROR) == [(id, f"Node {N1}")])
        code, explained = imex(rack, "explain", f"node/{N1}")
        assert (code, explained["findings"][0]["id"]) == (1, id)
        code, verified = imex(rack, "verify", "-n", rack.namespace.name, "computedomain/train")
        assert (code, [f["id"] for f in verified["findings"] if f["severity"] == "error"]) == (1, [id])


def test_nodes_that_cannot_reach_each_other_are_named(rack: Rack) -> None:
    with rack.injector.during(DropTraffic(between=(N0, N1))):
        partition = f"NVLinkPartition {rack.partition_name}"
        rack.until(lambda: found(rack, Severity.ERROR) == [("IMEX310", partition)])


def test_a_node_without_power_is_the_only_error(rack: Rack) -> None:
    rack.power_off(N3)
    rack.until(lambda: found(rack, Severity.ERROR) == [("IMEX301", f"Node {N3}")])
    rack.node(N3).power_on()


def test_mistakes_in_pods_are_named(rack: Rack) -> None:
    """All at once: each has its own finding. Their workloads are different, because each pod is its own."""
    namespace = rack.namespace
    typo = namespace.pod("typo", N2, template="trian", command=SLEEP)
    typo["spec"]["resourceClaims"][0]["name"] = "imex"
    typo["spec"]["containers"][0]["resources"]["claims"] = [{"name": "imex"}]
    unlisted = namespace.pod("unlisted", N2, template="train", command=SLEEP)
    del unlisted["spec"]["containers"][0]["resources"]
    legacy = namespace.pod("legacy", N2, command=SLEEP)
    legacy["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]
    nowhere = namespace.pod("nowhere", N2, template="train", command=SLEEP)
    nowhere["spec"]["nodeSelector"] = {"pool": "none"}
    rack.kubectl.apply(typo, unlisted, legacy, nowhere)
    expected = {
        ("IMEX101", f"Pod {namespace.name}/typo"),
        ("IMEX105", f"Pod {namespace.name}/unlisted"),
        ("IMEX150", f"Pod {namespace.name}/legacy"),
        ("IMEX401", f"Pod {namespace.name}/nowhere"),
    }
    rack.until(lambda: set(found(rack)) == expected)
    _, explained = imex(rack, "explain", "pod/typo", "-n", namespace.name)
    assert explained["brokenLink"] == "template"
    assert explained["findings"][0]["nextStep"] == "use train"
    _, explained = imex(rack, "explain", "pod/nowhere", "-n", namespace.name)
    assert (explained["brokenLink"], explained["partitions"][0]["fit"]) == ("claim", 0)
    assert explained["partitions"][0]["lacking"] == {"without the label pool=none": 4}
    namespace.kubectl("delete", "pods", "typo", "unlisted", "legacy", "nowhere", "--force", "--grace-period=0")


def test_a_bundle_of_the_rack_says_the_same(rack: Rack, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    with rack.injector.during(BreakFabric(nodes=(N1,))):
        rack.until(lambda: found(rack, Severity.ERROR) == [("IMEX303", f"Node {N1}")])
        flags = ["collect", f"--file={file}", f"--kubeconfig={rack.cluster.kubeconfig}"]
        command = [sys.executable, "-m", "imex_dra.cli", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert " objects, " in done.stdout
    _, explained = imex(rack, "explain", f"node/{N1}", f"--from={file}")
    assert (explained["brokenLink"], explained["findings"][0]["id"]) == ("fabric", "IMEX303")


def test_a_reader_without_rights_is_told(rack: Rack) -> None:
    """The service account of the namespace may read nothing; with the role view, what the namespace has."""
    namespace = rack.namespace
    token = namespace.kubectl("create", "token", "default").strip()
    config = json.loads(rack.kubectl("config", "view", "--raw", "--output=json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    config["contexts"][0]["context"]["namespace"] = namespace.name
    file = rack.cluster.kubeconfig.parent / "reader.kubeconfig"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "imex_dra.cli", "verify", f"--kubeconfig={file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("imex: nothing of this cluster can be read: you may not list pods")
    account = f"--serviceaccount={namespace.name}:default"
    namespace.kubectl("create", "rolebinding", "reader", "--clusterrole=view", account)

    def missing() -> str:
        done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
        return "; ".join(json.loads(done.stdout)["missing"]) if done.returncode == 0 else ""

    rack.until(
        lambda: "you may list pods, resourceclaims, resourceclaimtemplates, computedomains, events" in missing()
    )
    assert f"only in namespace {namespace.name}" in missing()
    assert "you may not list nvlinkpartitions, nvlinknodes, nodes" in missing()
