"""Two small racks that every fault is tried on: r0 has a job on all its nodes, r1 is idle."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.handle import Cluster, running
from imex_dra.sandbox.faults.injector import Injector
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.racks import Cluster as Racks
from imex_dra.sandbox.racks import Rack
from tests.cluster.team import Team

KINDS = "nodes,nvlinknodes,nvlinkpartitions,resourceslices,computedomains,pods"
NODES = 3
GENEROUS = 120.0
EXTRA = {"made-by": "a-test-of-faults"}


class Seen:
    """What one `kubectl get` shows of everything, by kind and name."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self._found = {(item["kind"], item["metadata"]["name"]): item for item in items}

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: item for (found, name), item in self._found.items() if found == kind}

    def card(self, node: str) -> dict[str, Any]:
        status: dict[str, Any] = self._found["NVLinkNode", node].get("status", {})
        return status

    def peers(self, node: str) -> set[str]:
        """The nodes that its IMEX daemon is connected with, both ways."""
        card = self.card(node)
        others = {name: self.card(name) for name in self.all("NVLinkNode")}
        near = {name: other for name, other in others.items() if other["partition"] == card["partition"]}
        return {name for name, other in near.items() if other["slot"] in card.get("connected", [])}

    def partition(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self._found.get(("NVLinkPartition", name), {}).get("status", {})
        return status

    def node(self, name: str) -> dict[str, Any]:
        return self._found["Node", name]

    def node_ready(self, name: str) -> dict[str, Any]:
        return next(c for c in self.node(name)["status"]["conditions"] if c["type"] == "Ready")

    def pod(self, name: str) -> dict[str, Any]:
        return self._found.get(("Pod", name), {})

    def slice_of(self, node: str) -> str:
        """The UID of the node's seats; empty if it offers none."""
        found = [s for s in self.all("ResourceSlice").values() if s["spec"]["nodeName"] == node]
        return str(found[0]["metadata"]["uid"]) if found else ""

    def why(self, domain: str = "train") -> str:
        """Why the ComputeDomain is not Ready; empty if it is."""
        conditions = self._found["ComputeDomain", domain].get("status", {}).get("conditions", [])
        ready = next(
            (c for c in conditions if c["type"] == "Ready"), {"status": "False", "message": "nobody knows"}
        )
        return "" if ready["status"] == "True" else str(ready["message"])


class Site:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.injector = Injector(cluster)
        self.homes = {name: node.partition for name, node in cluster.nodes.items()}
        self.team = Team(cluster)

    def furnish(self) -> None:
        self.team.domain("train")
        sleep = ("sleep", "1000000")
        pods = [self.team.pod(f"w{n}", f"r0-n0{n}", template="train", command=sleep) for n in range(NODES)]
        self.kubectl.apply(*pods)
        self.until_healthy()

    def look(self) -> Seen:
        return Seen(self.kubectl.get(KINDS, "--all-namespaces")["items"])

    def until(self, condition: Callable[[Seen], object], within: float = GENEROUS) -> Seen:
        """What was seen when the condition held."""
        deadline, error = time.monotonic() + within, ""
        while time.monotonic() < deadline:
            try:
                seen = self.look()
                if condition(seen):
                    return seen
            except (Rejected, KeyError) as missing:  # the API server is away, or something is not there yet
                error = repr(missing)
            time.sleep(0.1)
        shown = self.kubectl("get", KINDS.replace("pods", "pods,events"), "--all-namespaces", "-o", "wide")
        raise AssertionError(f"not within {within:.0f} s. {error}\n{shown}\n{self.cluster.logs()}")

    def until_healthy(self) -> None:
        self.until(self._healthy)

    def _healthy(self, seen: Seen) -> bool:
        nodes = all(seen.node_ready(name)["status"] == "True" for name in self.homes)
        cards = all(self._serves(seen.card(name), home) for name, home in self.homes.items())
        seats = all(seen.slice_of(name) for name in self.homes)
        up = all(seen.partition(home)["summary"]["state"] == "UP" for home in self.homes.values())
        pods = all(_is_ready(seen.pod(f"w{number}")) for number in range(NODES))
        return nodes and cards and seats and up and pods and not seen.why()

    def _serves(self, card: dict[str, Any], home: str) -> bool:
        fine = (card["fabric"]["state"], card["imexState"], card["partition"]) == ("ok", "READY", home)
        return fine and len(card.get("connected", [])) == NODES - 1

    def start_pod(self, node: str, *, claim: bool = True) -> str:
        """One more pod, of the job if it has a claim; `tidy` removes it. Its argument is no other process's."""
        name = f"p-{uuid.uuid4().hex[:8]}"
        pod = self.team.pod(name, node, template="train" if claim else "", command=("sleep", marker(name)))
        pod["metadata"]["labels"] = EXTRA
        self.kubectl.apply(pod)
        return name

    def domain(self, name: str) -> dict[str, Any]:
        meta = {"name": name, "namespace": self.team.name, "labels": EXTRA}
        return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": meta, "spec": {}}

    def tidy(self) -> None:
        """Undoes what stands, removes what was added, and waits until all is well."""
        for entry in self.injector.standing():
            self.injector.undo(entry.id)
        self.until(lambda seen: True)
        selected = ",".join(f"{key}={value}" for key, value in EXTRA.items())
        words = ("-n", self.team.name, "delete", "pods,computedomains", "-l", selected, "--timeout=120s")
        self.kubectl(*words, within=GENEROUS + 30)
        self.until_healthy()

    def events(self, pod: str) -> str:
        found = self.team.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
        return "\n".join(event["message"] for event in found)

    def process_in(self, pod: str, *argv: str) -> subprocess.Popen[str]:
        words = [
            "--kubeconfig",
            str(self.cluster.kubeconfig),
            "-n",
            self.team.name,
            "exec",
            "-i",
            pod,
            "--",
            *argv,
        ]
        return subprocess.Popen(
            [find("kubectl"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def python_in(self, pod: str, script: str, *arguments: str) -> subprocess.Popen[str]:
        return self.process_in(pod, sys.executable, "-c", script, *arguments)

    def log(self, name: str) -> str:
        path = self.cluster.places.log(name)
        return path.read_text(errors="replace") if path.exists() else ""


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def container(pod: dict[str, Any]) -> str:
    """Which run of its container it is."""
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def marker(pod: str) -> str:
    """A number of seconds that only this pod sleeps for."""
    return f"1000000.{int(pod.removeprefix('p-'), 16)}"


def runs(pod: str) -> bool:
    """Whether its process is there, seen from the machine that simulates everything."""
    return any(marker(pod).encode() in words for words in _command_lines())


def _command_lines() -> Iterator[list[bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().split(b"\0")


@contextmanager
def running_site() -> Iterator[Site]:
    racks = tuple(Rack(f"r{number}", "gb200-nvl72", nodes=NODES) for number in range(2))
    name = f"f{uuid.uuid4().hex[:6]}"
    with running(Racks("sandbox.imex-dra.io/v1", "Cluster", racks, name)) as cluster:
        site = Site(cluster)
        site.furnish()
        yield site
