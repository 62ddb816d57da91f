"""The chart and the image on real kubelets: install, test, upgrade, roll back, uninstall, install again, remove.

The tests build on each other, in this order.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import imex_dra
from imex_dra.api.names import CHANNEL_CLASS, DRIVER, IMEX_DIRECTORY, NAMESPACE
from imex_dra.base.errors import Rejected
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.kubectl import to_yaml
from tests.chart import gpudriver
from tests.chart.helm import require
from tests.chart.installation import (
    LIMIT,
    NEXT_VERSION,
    NODES,
    PROGRAMS,
    RELEASE,
    Installation,
    cluster,
    next_version,
)
from tests.daemon.driver_root import DRIVER_ROOT
from tests.nvml.stub import CLUSTER_UUID, VERSION, compile_stub
from tests.paths import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

CRDS = {"computedomains.resource.nvidia.com", "nvlinknodes.imex-dra.io", "nvlinkpartitions.imex-dra.io"}
PARTITION = "00000000-0000-4000-8000-000000000001.1"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    require()
    with (
        tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as directory,
        cluster(Path(directory)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc, which compiles the stub of libnvidia-ml.so.1, is not installed")
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def objects_before(installation: Installation) -> set[str]:
    return installation.objects()


def until_gone(installation: Installation, expected: set[str]) -> None:
    """Fails with the objects that are there but not expected."""
    with suppress(AssertionError):
        until(lambda: installation.objects() <= expected, within=LIMIT)
    assert installation.objects() - expected == set()


@pytest.mark.usefixtures("objects_before")
def test_after_an_installation_every_program_is_ready(installation: Installation) -> None:
    notes = installation.install()
    for crd in CRDS:
        assert crd in notes
    for program, count in PROGRAMS.items():
        statuses = [pod["status"]["containerStatuses"][0] for pod in installation.pods(program)]
        assert [(found["ready"], found["restartCount"]) for found in statuses] == [(True, 0)] * count, program


def test_a_pod_gets_its_channel(installation: Installation) -> None:
    installation.create_domain("train")
    installation.create_pod("exporter", "a0", "train")
    installation.create_pod("importer", "a1", "train")
    installation.until_ready("exporter", "importer")
    devices = {
        installation.execute(pod, "ls", "/dev/nvidia-caps-imex-channels") for pod in ("exporter", "importer")
    }
    assert len(devices) == 1
    assert re.fullmatch(r"channel\d+", devices.pop())


def test_programs_run_without_privileges_where_they_can(installation: Installation) -> None:
    for pod in [*installation.pods("controller"), *installation.pods("webhook")]:
        name = pod["metadata"]["name"]
        status = installation.kubectl("exec", "-n", NAMESPACE, name, "--", "cat", "/proc/1/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["65532"] * 4
        assert int(fields["CapEff"], 16) == 0


def test_helm_test_passes(installation: Installation) -> None:
    assert re.search(r"Phase:\s+Succeeded", installation.helm("test", RELEASE, "--timeout=120s"))


def test_the_webhook_rejects_a_claim_that_can_never_work(installation: Installation) -> None:
    """Its certificate, the authority in the configuration, the Service and the endpoints belong together."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": "00000000-0000-4000-8000-00000000dead",
    }
    devices = {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}],
        "config": [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "no-domain"},
        "spec": {"devices": devices},
    }

    def rejection() -> str:
        try:
            # Admitted while the API server does not know the authority yet; a dry run changes nothing.
            installation.kubectl("create", "--dry-run=server", "-f", "-", stdin=to_yaml(claim))
        except Rejected as error:
            return str(error)
        return ""

    assert "claims.imex-dra.io" in until(rejection, within=LIMIT, what="the webhook rejects the claim")


def test_programs_end_when_the_kubelet_tells_them_to(installation: Installation) -> None:
    """A program with pid 1 gets only signals that it handles. Without a handler it would be killed after 30 s."""
    names = [installation.pods(program)[0]["metadata"]["name"] for program in ("controller", "webhook", "node")]
    for name in names:
        installation.kubectl("exec", "-n", NAMESPACE, name, "--", "sh", "-c", "kill -TERM 1")

    def ended(name: str) -> dict[str, Any]:
        (status,) = installation.kubectl.get("pod", "-n", NAMESPACE, name)["status"]["containerStatuses"]
        found: dict[str, Any] = status["lastState"].get("terminated", {}) if status["ready"] else {}
        return found

    for name in names:
        last = until(partial(ended, name), within=LIMIT, what=f"{name} has ended and is ready again")
        assert (last["exitCode"], last["reason"]) == (0, "Completed"), name


def test_programs_show_what_they_do_and_change_their_log_level(
    installation: Installation,
) -> None:
    """With the commands of docs/operations.md."""

    def read(pod: str, path: str) -> str:
        return installation.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/{path}")

    pods = {
        program: [pod["metadata"]["name"] for pod in installation.pods(program)]
        for program in ("controller", "webhook")
    }
    for name in (*pods["controller"], *pods["webhook"]):
        assert read(name, "readyz").endswith("\nok\n")
    assert "imex_dra_review_seconds_count" in "".join(read(name, "metrics") for name in pods["webhook"])
    assert sum("imex_dra_leader_status 1" in read(name, "metrics") for name in pods["controller"]) == 1
    name = pods["webhook"][0]
    installation.kubectl("exec", "-n", NAMESPACE, name, "--", "sh", "-c", "kill -USR2 1")
    until(lambda: '"lowest": "debug"' in installation.kubectl("logs", "-n", NAMESPACE, name), within=LIMIT)


def test_preflight_checks_a_node_with_a_pod_that_does_not_stay(installation: Installation) -> None:
    """Simulated hardware has no GPU driver. Everything else is as on a node where the driver is installed."""
    command = [
        str(Path(sys.executable).with_name("imex")),
        "preflight",
        "--node=a0",
        f"--image={installation.image}",
    ]
    environment = {**os.environ, "KUBECONFIG": str(installation.kubeconfig)}
    done = subprocess.run(
        [*command, "--output=json"], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 1, done.stderr
    checks = {check["sentence"]: check["verdict"] for check in json.loads(done.stdout)["checks"]}
    assert checks["no other nvidia-imex runs on the host"] == "ok"
    assert checks["no other process listens on the ports of nvidia-imex"] == "ok"
    assert checks["no systemd unit nvidia-imex is enabled on the host"] == "ok"
    failed = [sentence for sentence, verdict in checks.items() if verdict == "failed"]
    assert failed[0].startswith("the GPU driver is not loaded")
    selector = "--selector=app.kubernetes.io/component=node-check"
    assert installation.kubectl.get("pods", "--all-namespaces", selector)["items"] == []


def test_a_support_bundle_has_logs_and_what_nvidia_imex_ctl_said(
    installation: Installation, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    command = [str(Path(sys.executable).with_name("imex")), "collect", f"--file={file}", "--output=json"]
    environment = {**os.environ, "KUBECONFIG": str(installation.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
    written = json.loads(done.stdout)
    assert written["missing"] == []
    nodes = installation.kubectl.get("nvlinknodes")["items"]
    assert (written["ctlAnswers"], written["logs"] > len(nodes)) == (len(nodes), True)
    with tarfile.open(file) as bundle:
        said = bundle.extractfile(f"imex-bundle/nvidia-imex-ctl/{nodes[0]['metadata']['name']}.txt")
        assert said
        assert b"READY" in said.read()


def test_upgrade_and_rollback_do_not_interrupt_a_memory_exchange(
    installation: Installation, tmp_path: Path
) -> None:
    """Between two images that differ in the version of the driver. The daemon pods keep theirs."""
    before, upgraded = installation.daemons(), next_version(tmp_path)
    installation.load(upgraded)
    with installation.memory_exchange():
        assert installation.execute_in("node", "a0", "imex", "version") == f"imex-dra {imex_dra.__version__}"
        installation.upgrade(upgraded.name, "--set=log.level=debug", "--set=node.maxClaims=8")
        for program in PROGRAMS:
            installation.until_images(program, installation.image if program == "daemon" else upgraded.name)
        assert installation.execute_in("node", "a0", "imex", "version") == f"imex-dra {NEXT_VERSION}"
        installation.rollback()
        for program in PROGRAMS:
            installation.until_images(program, installation.image)
    assert installation.daemons() == before


def test_after_the_rollback_new_pods_get_channels(installation: Installation) -> None:
    installation.create_pod("late", "a0", "train")
    installation.until_ready("late")


def test_imex_node_sees_what_the_kubelet_writes_and_unmounts(installation: Installation) -> None:
    """Both later than its pod has started: the sweep needs the first, and the detachment of volumes the second."""

    def read(path: str) -> str:
        return installation.execute_in("node", "a0", "cat", path)

    pod = installation.kubectl.get("pod", "late")
    (status,) = pod["status"]["resourceClaimStatuses"]
    claim = installation.kubectl.get("resourceclaim", status["resourceClaimName"])["metadata"]["uid"]
    assert claim in read("/var/lib/kubelet/dra_manager_state")
    # Its token is a volume.
    assert pod["metadata"]["uid"] in read("/proc/mounts")
    installation.delete("pod", "late", "--now")
    until(lambda: claim not in read("/var/lib/kubelet/dra_manager_state"), within=LIMIT)
    until(lambda: pod["metadata"]["uid"] not in read("/proc/mounts"), within=LIMIT)
    installation.delete("pods", "exporter", "importer", "--now")
    installation.delete("computedomain", "train")


def test_no_request_of_a_program_was_refused(installation: Installation) -> None:
    """By RBAC or by a policy, with the roles of the chart and the tokens of the pods."""
    assert installation.refused_requests() == []


def test_uninstall_leaves_what_the_documentation_lists(
    installation: Installation, objects_before: set[str]
) -> None:
    installation.uninstall()
    kept = {
        *(f"CustomResourceDefinition/{name}" for name in CRDS),
        # Of the CRDs.
        "APIService/v1alpha1.imex-dra.io",
        "APIService/v1beta1.resource.nvidia.com",
        f"Namespace/{NAMESPACE}",
        "ServiceAccount/default",
        "ConfigMap/kube-root-ca.crt",
        f"NVLinkPartition/{PARTITION}",
        *(f"NVLinkNode/{name}" for name in NODES),
    }
    # The kubelet deletes the ResourceSlices of a plugin that has been gone for half a minute.
    until_gone(installation, objects_before | kept)


def test_a_second_installation_finds_what_the_first_one_left(installation: Installation) -> None:
    def members() -> list[tuple[str, int]]:
        found = installation.kubectl.get("nvlinkpartition", PARTITION)["status"]["members"]
        return [(member["node"], member["index"]) for member in found]

    before = members()
    installation.install()
    installation.create_domain("again")
    installation.create_pod("again", "a1", "again")
    installation.until_ready("again")
    assert members() == before
    installation.delete("pod", "again", "--now")


def test_the_documented_commands_remove_everything(installation: Installation, objects_before: set[str]) -> None:
    section = (ROOT / "docs/operations.md").read_text().partition("\n## Uninstall\n")[2]
    commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(commands) == 2
    directories = {str(find(name).parent) for name in ("kubectl", "helm")}
    environment = {
        **os.environ,
        "KUBECONFIG": str(installation.kubeconfig),
        "PATH": ":".join([*directories, os.environ["PATH"]]),
    }
    for script in commands:
        done = subprocess.run(
            ["sh", "-eux"],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    until_gone(installation, objects_before)
    for node in installation.kubectl.get("nodes")["items"]:
        assert "nvidia.com/gpu.clique" not in node["metadata"]["labels"]


def test_with_default_values_nodes_with_a_gpu_driver_serve_claims(installation: Installation, nvml: Path) -> None:
    """NVML is a stub, and nvidia-imex is soft IMEX (gpudriver.py); everything else is as on hardware."""
    for name, node in installation.nodes.items():
        gpudriver.install(node, nvml)
        installation.kubectl("label", "node", name, "nvidia.com/gpu.present=true")
    installation.install_with_defaults()
    installation.create_domain("train")
    pods = dict(zip(("first", "second"), NODES, strict=True))
    for pod, name in pods.items():
        installation.create_pod(pod, name, "train")
    installation.until_ready(*pods)
    # The major is that of the driver's /proc/devices: 234.
    show = "stat --format='%F %t' /dev/nvidia-caps-imex-channels/channel$COMPUTE_DOMAIN_CHANNEL"
    assert [installation.execute(pod, "sh", "-c", show) for pod in pods] == ["character special file ea"] * 2
    assert re.search(r"Phase:\s+Succeeded", installation.helm("test", RELEASE, "--timeout=120s"))


def test_nvidia_imex_runs_from_the_driver_root_and_members_authenticate_each_other(
    installation: Installation,
) -> None:
    for name, node in installation.nodes.items():
        status = installation.kubectl.get("nvlinknode", name)["status"]
        assert (status["partition"], status["driverVersion"]) == (f"{CLUSTER_UUID}.7", VERSION)
        assert status["isolation"]["state"] == "enforced"
        conditions = {found["type"]: found["status"] for found in status["conditions"]}
        assert (conditions["Ready"], conditions["Connected"]) == ("True", "True"), status
        found = dict(
            line.split("=", 1) for line in node.machine.run("cat", f"{IMEX_DIRECTORY}/status").splitlines()
        )
        root = installation.execute_in("daemon", name, "readlink", f"/proc/{found['pid']}/root")
        assert root == f"/host{DRIVER_ROOT}"
        assert found["certificate"]
        configuration = node.machine.run("sh", "-c", f"cat {IMEX_DIRECTORY}/configs/*/config.cfg")
        assert "IMEX_ENABLE_AUTH_ENCRYPTION=1" in configuration.splitlines()
        # Created by `imex node`; without it the driver gives nvidia-imex no session.
        assert node.machine.run("stat", "--format=%F %t:%T", "/dev/nvidia-caps/nvidia-cap3") == (
            "character special file e9:3\n"
        )


def test_the_device_nodes_of_a_claim_leave_the_host_with_it(installation: Installation) -> None:
    def claims() -> str:
        return "".join(node.machine.run("ls", "/dev/imex-dra/claims") for node in installation.nodes.values())

    assert len(claims().split()) == len(NODES)
    installation.delete("pods", "first", "second", "--now")
    installation.delete("computedomain", "train")
    until(lambda: claims() == "", within=LIMIT)


def test_daemons_in_the_network_of_pods_are_members_with_the_addresses_of_their_pods(
    installation: Installation,
) -> None:
    installation.move_daemons_to_the_network_of_pods()
    until_members_have_addresses_of_pods(installation)
    installation.create_domain("pods")
    installation.create_pod("before", NODES[0], "pods")
    installation.until_ready("before")


def test_a_new_daemon_pod_has_another_address_and_is_found_by_the_others(installation: Installation) -> None:
    former = addresses_of_daemons(installation)
    installation.delete_pods("daemon", f"--field-selector=spec.nodeName={NODES[0]}")
    until_members_have_addresses_of_pods(installation)
    found = addresses_of_daemons(installation)
    assert (found[NODES[0]] != former[NODES[0]], found[NODES[1]]) == (True, former[NODES[1]])
    installation.create_pod("after", NODES[0], "pods")
    installation.until_ready("before", "after")


def addresses_of_daemons(installation: Installation) -> dict[str, str]:
    return {pod["spec"]["nodeName"]: pod["status"].get("podIP", "") for pod in installation.pods("daemon")}


def until_members_have_addresses_of_pods(installation: Installation) -> None:
    """In the partition, READY and connected to each other. The pods are in the network of their node's bridge."""

    def members() -> dict[str, str]:
        (partition,) = [
            found
            for found in installation.kubectl.get("nvlinkpartitions")["items"]
            if found["metadata"]["name"] == f"{CLUSTER_UUID}.7"
        ]
        return {
            found["node"]: found["address"]
            for found in partition["status"]["members"]
            if found["state"] == "Ready"
        }

    def connected() -> set[str]:
        nodes = installation.kubectl.get("nvlinknodes")["items"]
        return {
            node["metadata"]["name"]
            for node in nodes
            for condition in node["status"]["conditions"]
            if (condition["type"], condition["status"]) == ("Connected", "True")
        }

    def observed() -> tuple[dict[str, str], set[str]]:
        return members(), connected()

    def expected() -> tuple[dict[str, str], set[str]]:
        return addresses_of_daemons(installation), set(NODES)

    with suppress(AssertionError):
        until(lambda: observed() == expected(), within=LIMIT)
    assert observed() == expected()
    assert not {node.addresses.node for node in installation.nodes.values()} & set(members().values())
