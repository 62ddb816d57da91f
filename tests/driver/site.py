"""Two simulated racks on real kubelets: a0 and a1 in one NVLink partition, b0 in another, our driver on all."""

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import Rejected
from imex_dra.hardware.simulated import HardwareFile, SimulatedGpu
from imex_dra.sandbox.kubernetes import driver, images, pythonimage
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.driver import NodeDriver
from imex_dra.sandbox.kubernetes.network import Network
from imex_dra.sandbox.kubernetes.node import Node
from imex_dra.sandbox.process import Process
from tests.conftest import install_crds
from tests.sandbox.waiting import eventually

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RACK_A = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
RACK_B = "0f0e0d0c-0b0a-4908-8706-050403020100.32766"
PARTITIONS = {"a0": RACK_A, "a1": RACK_A, "b0": RACK_B}
DEADLINE = 6.0
"""For prepares, instead of 40 s: still far more than anything that can succeed needs."""


class Site:
    def __init__(self, root: Path, control_plane: ControlPlane, nodes: Sequence[Node]) -> None:
        self.root = root
        self.control_plane = control_plane
        self.kubectl = control_plane.kubectl
        self.refusals: list[tuple[str, datetime, datetime]] = []
        """What a test let the API server refuse our programs, from when until when."""
        account = control_plane.service_account("imex-dra", "imex-controller")
        self.controller = driver.controller(account, root / "controller.log")
        self.drivers = {
            node.name: NodeDriver(
                node,
                kubeconfig=control_plane.service_account("imex-dra", "imex-node", node=node.name),
                fabric=root / "fabric",
                flags=(f"--prepare-deadline={DEADLINE}",),
            )
            for node in nodes
        }

    def start(self) -> None:
        self.controller.start()
        for name, node in self.drivers.items():
            node.start(healthy(name))
        self.until(lambda: len(self.kubectl.get("resourceslices")["items"]) == len(self.drivers))
        self.until(lambda: all(self.is_whole(partition) for partition in (RACK_A, RACK_B)))

    def is_whole(self, partition: str) -> bool:
        """Every member is ready, and its card says that it is connected with all others: nothing is on its way."""
        status = self.partition(partition)["status"]
        slots = {member["node"]: member["slot"] for member in status.get("members", [])}
        connected = {node: set(self.card(node).get("connected", ())) for node in slots}
        return status["summary"]["state"] == "UP" and all(
            connected[node] >= set(slots.values()) - {slot} for node, slot in slots.items()
        )

    def stop(self) -> None:
        self.controller.stop()
        for node in self.drivers.values():
            node.stop()

    def until(self, condition: Any, within: float = 90) -> None:
        if not eventually(condition, within):
            raise AssertionError(f"not within {within} s. {self.logs()}")

    def logs(self) -> str:
        paths = [self.root / "controller.log", *sorted(self.root.glob("*/imex-*.log"))]
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in paths if path.exists())

    def namespace(self) -> "Team":
        name = f"team-{uuid.uuid4().hex[:6]}"
        self.kubectl("create", "namespace", name)
        return Team(self, name)

    def partition(self, name: str = RACK_A) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.get("nvlinkpartition", name)
        return found

    def card(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.get("nvlinknode", name)["status"]
        return found

    def member_names(self, partition: str = RACK_A) -> list[str]:
        """Those that are there to stay."""
        members = self.partition(partition)["status"].get("members", [])
        return [member["node"] for member in members if member["state"] != "Leaving"]

    def partition_condition(self, kind: str, partition: str = RACK_A) -> dict[str, Any]:
        conditions = self.partition(partition)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def members(self) -> list[tuple[str, int, str]]:
        status = self.partition()["status"]
        return [(member["node"], member["slot"], member["address"]) for member in status["members"]]

    def channel_of(self, domain_uid: str, partition: str = RACK_A) -> int | None:
        entries = self.partition(partition)["status"].get("channels", [])
        mine = [e for e in entries if e["computeDomain"]["uid"] == domain_uid and e["state"] == "Assigned"]
        return mine[0]["channel"] if mine else None

    def prepared(self, node: str) -> set[str]:
        """Claim UIDs in the checkpoint; the CDI specs must be the same ones."""
        root = self.drivers[node].node.root
        file = root / "k/plugins" / DRIVER / "imex-dra.json"
        claims = set(json.loads(json.loads(file.read_text())["payload"])["claims"]) if file.exists() else set()
        specs = {path.stem.partition("_")[2] for path in (root / "run/cdi").glob("imex-dra.io-channel_*.json")}
        return claims | specs

    def until_nothing_prepared(self, within: float = 120) -> None:
        self.until(lambda: not any(self.prepared(name) for name in self.drivers), within)

    @contextmanager
    def without_kubelet(self, name: str) -> Iterator[None]:
        """The scheduler still binds pods to the node for a while; the kubelet finds them when it is back."""
        kubelet = self.drivers[name].node.kubelet
        kubelet.kill()
        assert kubelet.ended(within=60)
        try:
            yield
        finally:
            kubelet.start()

    @contextmanager
    def hardware(self, name: str, **changes: Any) -> Iterator[None]:
        """The node's hardware is another one for a while."""
        root = self.drivers[name].root
        root.write_hardware(changed(healthy(name), **changes))
        try:
            yield
        finally:
            root.write_hardware(healthy(name))

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        self.controller.stop()
        try:
            yield
        finally:
            self.controller.start()

    def registrations(self, name: str) -> int:
        """How often the kubelet has registered the node's plugins."""
        logs = self.drivers[name].node.root.glob("imex-node*.log")
        return sum(log.read_text().count("registered the driver") for log in logs)

    def said(self, name: str, event: str, claim: str) -> list[datetime]:
        """When the node's program said this of a claim."""
        lines = (self.drivers[name].node.root / "imex-node.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if event in line and claim in line and line.endswith("}")]
        times = [e["timestamp"] for e in entries if (e["event"], e.get("claim")) == (event, claim)]
        return [datetime.fromisoformat(time) for time in times]

    def requests(self) -> list[dict[str, Any]]:
        """Of the whole run so far, as the API server's audit log has them; the last line may be on its way."""
        text = self.control_plane.audit_log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def offering(self) -> set[str]:
        """Nodes with seats."""
        return {found["spec"]["nodeName"] for found in self.kubectl.get("resourceslices")["items"]}

    def until_seats(self, name: str) -> None:
        self.until(lambda: name in self.offering())


def healthy(name: str) -> HardwareFile:
    return HardwareFile(
        fabric=Fabric(FabricState.OK),
        partition=PARTITIONS[name],
        driver_version="580.95.05",
        boot_id=f"boot-of-{name}",
        gpus=tuple(SimulatedGpu(f"GPU-{name}-{number}", "GB200") for number in range(4)),
    )


class Team:
    """A namespace, and what its people do."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name

    def kubectl(self, *words: str) -> str:
        return self.site.kubectl("-n", self.name, *words)

    def get(self, *words: str) -> Any:
        return self.site.kubectl.get("-n", self.name, *words)

    def domain(self, name: str, **spec: Any) -> str:
        """Creates a ComputeDomain, waits for its template, and returns its UID."""
        self.site.kubectl.apply(
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "ComputeDomain",
                "metadata": {"name": name, "namespace": self.name},
                "spec": spec,
            }
        )
        self.site.until(lambda: self.exists("resourceclaimtemplate", name))
        uid: str = self.get("computedomain", name)["metadata"]["uid"]
        return uid

    def pod(self, name: str, node: str, **options: Any) -> None:
        self.site.kubectl.apply(self.manifest(name, node, **options))

    def manifest(
        self,
        name: str,
        node: str,
        *,
        template: str = "",
        claim: str = "",
        extra: Sequence[str] = (),
        image: str = images.BUSYBOX,
    ) -> dict[str, Any]:
        """A pod whose container `main` has the claim; `extra` containers have not."""
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        idle = {"image": image, "command": ["sleep", "10000"]}
        main = {"name": "main", **idle, "resources": {"claims": [{"name": "channel"}]}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "resourceClaims": [{"name": "channel", **source}],
                "containers": [main, *({"name": other, **idle} for other in extra)],
            },
        }

    def claim(self, name: str, parameters: dict[str, Any]) -> None:
        """A claim made by hand, with whatever configuration."""
        opaque = {"driver": DRIVER, "parameters": parameters}
        request = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
        self.site.kubectl.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}},
            }
        )

    def until_running(self, *pods: str, within: float = 150) -> None:
        names = [f"pod/{pod}" for pod in pods]
        try:
            words = ("-n", self.name, "wait", "--for=condition=Ready", *names, f"--timeout={within:.0f}s")
            self.site.kubectl(*words, within=within + 10)
        except Rejected as error:
            events = self.kubectl("get", "events")
            raise AssertionError(f"{error}\n{events}\n{self.site.logs()}") from error

    def until_running_again(self, pod: str) -> None:
        """After a failure. The kubelet would ask again after a minute or more; a changed pod makes it ask now."""

        def asked_again_and_runs() -> bool:
            self.kubectl("annotate", "pod", pod, f"try={uuid.uuid4()}", "--overwrite")
            try:
                self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=10s")
            except Rejected:
                return False
            return True

        self.site.until(asked_again_and_runs, within=180)

    def inside(self, pod: str, script: str, container: str = "main") -> str:
        return self.kubectl("exec", pod, "-c", container, "--", "sh", "-c", script).strip()

    def channels_inside(self, pod: str, container: str = "main") -> list[str]:
        listing = self.inside(pod, "ls /dev/nvidia-caps-imex-channels 2>/dev/null; true", container)
        return listing.split()

    def failure(self, pod: str, within: float = 180) -> str:
        """The kubelet's event on why it could not prepare, other than that it has not met the driver yet."""
        found: list[str] = []

        def told() -> bool:
            events = self.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
            messages = [e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"]
            found.extend(message for message in messages if "is not registered" not in message)
            return bool(found)

        self.site.until(told, within)
        return found[0]

    def waited(self, node: str, claim: str) -> float:
        """Seconds between the question and the answer, as the node's program logged them."""
        name = f"{self.name}/{claim}"
        self.site.until(lambda: bool(self.site.said(node, "claim failed", name)))
        begun, ended = (self.site.said(node, event, name)[0] for event in ("preparing", "claim failed"))
        return (ended - begun).total_seconds()

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found"))

    def delete(self, *words: str) -> None:
        self.site.kubectl("-n", self.name, "delete", *words, "--timeout=150s", within=180)

    def status(self, domain: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("computedomain", domain).get("status", {})
        return found

    def ready_nodes(self, domain: str) -> str:
        return str(self.status(domain).get("summary", {}).get("nodes"))

    def condition(self, domain: str, kind: str) -> dict[str, Any]:
        return next((c for c in self.status(domain).get("conditions", []) if c["type"] == kind), {})


@contextmanager
def running_site(root: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(root / "cp"))
        network = stack.enter_context(Network(root))
        install_crds(control_plane)
        for manifest in ("rbac", "deviceclasses"):
            control_plane.kubectl("apply", "-f", str(DEPLOY / f"{manifest}.yaml"))
        archives = [pythonimage.imex()]
        nodes = [
            Node(name, root / name, control_plane=control_plane, network=network, archives=archives)
            for name in PARTITIONS
        ]
        for node in nodes:
            node.start()
            stack.callback(node.stop)
        for node in nodes:
            node.until_ready()
        site = Site(root, control_plane, nodes)
        stack.callback(site.stop)
        site.start()
        yield site


def waited_for(message: str) -> int:
    """The seconds that a sentence of ours says it waited for; 0 if it does not."""
    found = re.search(r"after waiting for (\d+) s", message)
    return int(found[1]) if found else 0


def restart(process: Process) -> None:
    process.kill()
    assert process.ended(within=60)
    process.start()


def changed(hardware: HardwareFile, **changes: Any) -> HardwareFile:
    return msgspec.structs.replace(hardware, **changes)
