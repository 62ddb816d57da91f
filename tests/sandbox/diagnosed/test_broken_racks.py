"""What the commands say about a real control plane and a simulated rack that is broken by faults: the cause, and
no other error. A healthy rack has no finding. `test_broken_nodes` has more causes; `tests/diagnose` has one broken
cluster for each finding, made of plain objects.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.api.names import CHANNEL_CLASS, CLIQUE_LABEL
from imex_dra.lint.findings import Severity
from imex_dra.picture.snapshot import PRODUCT_LABEL
from imex_sandbox.faults.kinds import (
    AnyFault,
    BreakFabric,
    DropTraffic,
    HangProcess,
    PendFabric,
    ReloadDriver,
)
from tests.sandbox.cluster.namespace import Namespace
from tests.sandbox.diagnosed.commands import N0, N1, N2, N3, domain, found, imex, job
from tests.sandbox.failures.rack import SLEEP, Rack, running_rack

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """With a job on two nodes. A test undoes what it breaks, and the next one waits until the rack is healthy."""
    with running_rack() as rack:
        rack.run("train", N0, N1)
        yield rack


@pytest.fixture(autouse=True)
def healthy(rack: Rack) -> None:
    rack.until(lambda: found(rack) == [])


def test_a_healthy_rack_passes_every_command(rack: Rack) -> None:
    namespace = rack.namespace.name
    # Its pods may run before its status says so, and until then nothing is found either.
    rack.until(lambda: [one["status"] for one in imex(rack, "status")[1]["computeDomains"]] == ["Ready"])
    code, status = imex(rack, "status")
    assert (code, status["findings"], status["missing"]) == (0, [], [])
    assert [one["freeNodes"] for one in status["partitions"]] == [[N2, N3]]
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


def test_a_node_whose_driver_was_reloaded_with_another_version_is_named(rack: Rack) -> None:
    version = rack.nvlink_node(N3)["driverVersion"]
    rack.injector.inject(ReloadDriver(nodes=(N3,), major=235, version="999.1"))
    rack.until(lambda: found(rack) == [("IMEX311", f"NVLinkPartition {rack.partition_name}")])
    rack.injector.inject(ReloadDriver(nodes=(N3,), major=236, version=version))


def test_a_node_without_imex_node_is_named(rack: Rack) -> None:
    """A node that was added, with the label of GPU Feature Discovery, and is Ready."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "r0-n99", "labels": {PRODUCT_LABEL: "GB200"}}}
    rack.kubectl.apply(node)
    try:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        patch = json.dumps({"status": {"conditions": [ready]}})
        rack.kubectl("patch", "node", "r0-n99", "--subresource=status", f"--patch={patch}")
        assert found(rack, Severity.ERROR) == [("IMEX302", "Node r0-n99")]
    finally:
        rack.kubectl("delete", "node", "r0-n99")


def test_a_node_that_publishes_no_devices_is_named(rack: Rack) -> None:
    with rack.injector.during(HangProcess(program="imex-node", nodes=(N3,))):
        rack.delete_slice(N3)
        rack.until(lambda: found(rack) == [("IMEX308", f"Node {N3}")])


def test_a_controller_that_does_not_run_is_named(rack: Rack) -> None:
    """A minute after its last renewal, which is changed here instead."""
    with rack.injector.during(HangProcess(program="imex-controller")):
        patch = json.dumps({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
        rack.kubectl("-n", "imex-dra", "patch", "lease", "imex-controller", f"--patch={patch}")
        assert found(rack) == [("IMEX204", "Lease imex-dra/imex-controller")]


def test_a_missing_device_class_is_the_only_error(rack: Rack) -> None:
    saved = rack.kubectl.get("deviceclass", CHANNEL_CLASS)
    rack.kubectl("delete", "deviceclass", CHANNEL_CLASS)
    try:
        assert found(rack, Severity.ERROR) == [("IMEX202", f"DeviceClass {CHANNEL_CLASS}")]
    finally:
        for field in ("resourceVersion", "uid", "creationTimestamp"):
            del saved["metadata"][field]
        rack.kubectl.apply(saved)


def test_what_preflight_must_find_in_a_cluster(rack: Rack) -> None:
    """The legacy DaemonSet, whose pods run nowhere; and two driver versions in labels of GPU Feature Discovery."""
    legacy = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-imex", "namespace": rack.namespace.name},
        "spec": {
            "selector": {"matchLabels": {"app": "imex"}},
            "template": {
                "metadata": {"labels": {"app": "imex"}},
                "spec": {
                    "nodeSelector": {"pool": "none"},
                    "containers": [{"name": "imex", "image": "x", "command": ["nvidia-imex"]}],
                },
            },
        },
    }
    rack.kubectl.apply(legacy)
    label = "nvidia.com/cuda.driver-version.full"
    rack.kubectl("label", "node", N0, f"{label}=570.1.2")
    rack.kubectl("label", "node", N1, f"{label}=580.0.1")
    try:
        code, checked = imex(rack, "preflight")
        assert (code, sorted(f["id"] for f in checked["findings"])) == (1, ["IMEX215", "IMEX217"])
    finally:
        rack.namespace.kubectl("delete", "daemonset", "nvidia-imex")
        rack.kubectl("label", "node", N0, N1, f"{label}-")


def test_mistakes_in_pods_are_named(rack: Rack) -> None:
    """All at once: each has its own finding. Their workloads are different, because each pod is its own."""
    namespace = rack.namespace
    typo = namespace.pod("typo", N2, template="trian", command=SLEEP)
    typo["spec"]["resourceClaims"][0]["name"] = "imex"
    typo["spec"]["containers"][0]["resources"]["claims"] = [{"name": "imex"}]
    unlisted = namespace.pod("unlisted", N2, template="train", command=SLEEP)
    del unlisted["spec"]["containers"][0]["resources"]
    partly = namespace.pod("partly", N2, template="train", command=SLEEP)
    gpus = {"name": "second", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    partly["spec"]["containers"].append({**gpus, "command": list(SLEEP)})
    legacy = namespace.pod("legacy", N2, command=SLEEP)
    legacy["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]
    mounted = namespace.pod("mounted", N2, template="train", command=SLEEP)
    mounted["spec"]["volumes"] = [{"name": "d", "hostPath": {"path": "/dev/nvidia-caps-imex-channels"}}]
    privileged = namespace.pod("privileged", N2, template="train", command=SLEEP)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    port = namespace.pod("port", N2, command=SLEEP)
    port["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 50000}]
    nowhere = namespace.pod("nowhere", N2, template="train", command=SLEEP)
    nowhere["spec"]["nodeSelector"] = {"pool": "none"}
    lonely = namespace.pod("lonely", N2, template="train", command=SLEEP)
    term = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": {"job": "none"}}}
    lonely["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    bound = namespace.pod("bound", N2, template="train", command=SLEEP)
    del bound["spec"]["nodeSelector"]
    bound["spec"]["nodeName"] = N2
    far = namespace.pod("far", N2, template="train", command=SLEEP)
    far["spec"]["resourceClaims"] = [{"name": "channel", "resourceClaimName": claim_on(rack, N0)}]
    pods = (typo, unlisted, partly, legacy, mounted, privileged, port, nowhere, lonely, bound, far)
    rack.kubectl.apply(*pods)
    expected = {
        ("IMEX101", f"Pod {namespace.name}/typo"),
        ("IMEX105", f"Pod {namespace.name}/unlisted"),
        ("IMEX107", f"Pod {namespace.name}/partly"),
        ("IMEX150", f"Pod {namespace.name}/legacy"),
        ("IMEX151", f"Pod {namespace.name}/mounted"),
        ("IMEX152", f"Pod {namespace.name}/privileged"),
        ("IMEX216", f"Pod {namespace.name}/port"),
        ("IMEX401", f"Pod {namespace.name}/nowhere"),
        ("IMEX401", f"Pod {namespace.name}/lonely"),
        ("IMEX401", f"Pod {namespace.name}/far"),
        ("IMEX403", f"Pod {namespace.name}/bound"),
    }
    rack.until(lambda: set(found(rack)) == expected)
    _, explained = imex(rack, "explain", "pod/typo", "-n", namespace.name)
    assert explained["brokenLink"] == "template"
    assert explained["findings"][0]["nextStep"] == "use train"
    _, explained = imex(rack, "explain", "pod/nowhere", "-n", namespace.name)
    assert (explained["brokenLink"], explained["partitions"][0]["fit"]) == ("claim", 0)
    assert explained["partitions"][0]["lacking"] == {"without the label pool=none": 4}
    for name, said, step in (
        ("lonely", "didn't match pod affinity rules", "IMEX142"),
        ("far", "resourceclaim not available on the node", "IMEX109"),
        ("bound", "is not allowed to use ResourceClaim", "spec.nodeName"),
    ):
        _, explained = imex(rack, "explain", f"pod/{name}", "-n", namespace.name)
        finding = explained["findings"][0]
        assert (explained["brokenLink"], said in finding["evidence"]) == ("claim", True), finding
        assert step in finding["nextStep"], name
    names = [pod["metadata"]["name"] for pod in pods]
    namespace.kubectl("delete", "pods", *names, "--force", "--grace-period=0")


def claim_on(rack: Rack, node: str) -> str:
    claims = rack.namespace.get("resourceclaims")["items"]
    (name,) = [
        claim["metadata"]["name"]
        for claim in claims
        if claim["status"]["allocation"]["devices"]["results"][0]["pool"] == node
    ]
    return str(name)


def test_a_runtime_that_does_not_find_the_device_is_named(rack: Rack) -> None:
    """As one that reads other directories: the CDI spec is removed between the prepare and the container."""
    namespace = rack.namespace
    specs = rack.node(N2).root.path / "run/cdi"
    pod = namespace.pod("unresolved", N2, template="train", command=SLEEP)
    pod["spec"]["initContainers"] = [{"name": "first", "image": "x", "command": ["sleep", "3"]}]
    rack.kubectl.apply(pod)

    def found_without_spec() -> list[tuple[str, str]]:
        for spec in specs.glob("*.json"):
            spec.unlink(missing_ok=True)
        return found(rack)

    rack.until(lambda: found_without_spec() == [("IMEX415", f"Pod {namespace.name}/unresolved")])
    _, explained = imex(rack, "explain", "pod/unresolved", "-n", namespace.name)
    assert (explained["brokenLink"], explained["findings"][0]["id"]) == ("channel", "IMEX415")
    namespace.kubectl("delete", "pod", "unresolved", "--force", "--grace-period=0")


def test_mistakes_in_workloads_are_named(rack: Rack) -> None:
    """A ComputeDomain that is refused, one whose template has another owner, and one with two workloads; a pod in
    another namespace than its ComputeDomain; and a job that is larger than the rack.
    """
    namespace, other = rack.namespace, Namespace(rack.cluster)
    taken = rack.kubectl.get("-n", namespace.name, "resourceclaimtemplate", "train")
    taken["metadata"] = {"name": "taken", "namespace": namespace.name}
    rack.kubectl.apply(taken)
    for name in ("taken", "large", "shared"):
        rack.kubectl.apply(domain(namespace, name))
    rack.kubectl.apply(domain(namespace, "open", mode="All"))
    stray = other.pod("stray", N2, template="train", command=SLEEP)
    rack.kubectl.apply(
        stray, job(namespace, "large", pods=5, gpus=4), *(job(namespace, n, "shared") for n in "ab")
    )

    def names(finding: tuple[str, str]) -> tuple[str, str]:
        """Without the random end of the names of pods."""
        return finding[0], finding[1].split("large-")[0]

    expected = {
        ("IMEX103", f"Pod {other.name}/stray"),
        ("IMEX402", f"Pod {namespace.name}/"),
        ("IMEX406", f"ComputeDomain {namespace.name}/open"),
        ("IMEX407", f"ComputeDomain {namespace.name}/taken"),
        ("IMEX411", f"ComputeDomain {namespace.name}/shared"),
    }
    rack.until(lambda: set(map(names, found(rack))) == expected)
    code, verified = imex(rack, "verify", "-n", namespace.name, "job/large")
    assert (code, [f["id"] for f in verified["findings"]]) == (1, ["IMEX402"])
    namespace.kubectl("delete", "jobs", "--all", "--cascade=foreground")
    namespace.delete("computedomains", "taken", "large", "shared", "open")
    namespace.kubectl("delete", "resourceclaimtemplate", "taken")
    other.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


def test_a_deletion_that_waits_names_the_pods(rack: Rack) -> None:
    namespace = rack.namespace
    (pod,) = rack.run("done", N2)
    namespace.kubectl("delete", "computedomain", "done", "--wait=false")
    rack.until(lambda: found(rack) == [("IMEX412", f"ComputeDomain {namespace.name}/done")])
    _, explained = imex(rack, "explain", "computedomain/done", "-n", namespace.name)
    assert pod in explained["findings"][0]["message"]
    namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


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
