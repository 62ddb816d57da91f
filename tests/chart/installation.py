"""The chart and the images of this tree, installed by helm on a real control plane and two real kubelets, with
simulated hardware, or with a stub of the GPU driver.

There is no kube-proxy: pods reach the API server by the relay of their node, and it reaches the webhook
at the addresses of its pods (--enable-aggregator-routing).
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.api.names import NAMESPACE
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from tests.chart.helm import CHART, helm
from tests.driver.test_memory_isolation import EXPORT
from tests.waiting import until
from tools import image

RELEASE = "imex-dra"
NODES = ("a0", "a1")
PROGRAMS = {"controller": 2, "webhook": 2, "node": len(NODES), "daemon": len(NODES)}
"""Pods of each."""
LIMIT = 120.0
NEXT_VERSION = "99.0"
EXCHANGE = """
import select, sys
from imex_sandbox.softimex import memory
imported = memory.open_channel().import_handle(bytes.fromhex(sys.argv[1]))
rounds = 0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    rounds += 1
    text = b"%019d" % rounds
    imported.write(0, text)
    if imported.read(0, 19) != text:
        sys.exit("a write was lost")
    if rounds == 1:
        print("exchanging", flush=True)
print(rounds, flush=True)
"""

# Not by a stream of kubectl: one that lasts for minutes may break on a busy machine.
START = """
mkfifo /tmp/input
sleep 1000000 >/tmp/input 2>/dev/null & echo $! >/tmp/holder
: >/tmp/output
{ python3 -c "$@" </tmp/input; echo "exit $?"; } >>/tmp/output 2>&1 &
"""

# Helm 4 waits by default until a DaemonSet has no pod of an older revision, which never happens with OnDelete.
_UPGRADE_WAIT = ("--wait=legacy", "--timeout=200s")
_OF_KUBERNETES = ("events", "csinodes", "ipaddresses", "componentstatuses")
_DAEMON_DIRECTORY = "/run/imex-dra/node/run/imex"
"""With simulated hardware."""


class Installation:
    def __init__(
        self, root: Path, control_plane: ControlPlane, nodes: dict[str, Node], images: dict[str, str]
    ) -> None:
        """`images` are names by target of the Containerfile."""
        self.control_plane = control_plane
        self.kubectl = control_plane.kubectl
        self.kubeconfig = control_plane.kubeconfig()
        self.nodes = nodes
        self.image, self._driver_image = images["sandbox"], images["driver"]
        self._repository, _, self._tag = self.image.rpartition(":")
        self._values = [
            f"--values={CHART / 'values/simulated.yaml'}",
            f"--set=image.repository={self._repository}",
            f"--set=hardware.simulated.fabricDirectory={root / 'fabric'}",
        ]

    # Releases

    def helm(self, *words: str) -> str:
        return helm(*words, f"--namespace={NAMESPACE}", kubeconfig=self.kubeconfig, within=300)

    def install(self) -> str:
        """What helm prints."""
        return self._install(*self._values, f"--set=image.tag={self._tag}")

    def install_with_defaults(self) -> None:
        repository, _, tag = self._driver_image.rpartition(":")
        self._install(f"--set=image.repository={repository}", f"--set=image.tag={tag}")

    def _install(self, *values: str) -> str:
        options = ("--create-namespace", "--wait", "--timeout=200s")
        printed = self.helm("install", RELEASE, str(CHART), *values, *options)
        self.until_published()
        return printed

    def upgrade(self, image: str, *values: str) -> None:
        options = (f"--set=image.tag={image.rpartition(':')[2]}", *values, *_UPGRADE_WAIT)
        self.helm("upgrade", RELEASE, str(CHART), *self._values, *options)

    def move_daemons_to_the_network_of_pods(self) -> None:
        self.helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set=daemon.network=pod", *_UPGRADE_WAIT)
        # An upgrade does not touch them (OnDelete).
        self.delete_pods("daemon")

    def delete_pods(self, component: str, *options: str) -> None:
        self.delete("pods", f"-n={NAMESPACE}", f"--selector=app.kubernetes.io/component={component}", *options)

    def rollback(self) -> None:
        self.helm("rollback", RELEASE, *_UPGRADE_WAIT)

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--wait", "--timeout=200s")

    def load(self, built: image.Image) -> None:
        for node in self.nodes.values():
            node.machine.run(find("ctr"), "--namespace=k8s.io", "images", "import", built.archive)

    # What runs

    def until_published(self) -> None:
        until(lambda: self.published() == set(NODES), within=LIMIT, what="a ResourceSlice of every node")

    def published(self) -> set[str]:
        return {found["spec"]["nodeName"] for found in self.kubectl.get("resourceslices")["items"]}

    def pods(self, component: str) -> list[dict[str, Any]]:
        selector = f"--selector=app.kubernetes.io/component={component}"
        found: list[dict[str, Any]] = self.kubectl.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
        return found

    def execute_in(self, component: str, node: str, *argv: str) -> str:
        """In the pod of a program on a node."""
        (pod,) = [pod for pod in self.pods(component) if pod["spec"]["nodeName"] == node]
        return self.kubectl("exec", f"--namespace={NAMESPACE}", pod["metadata"]["name"], "--", *argv).strip()

    def until_images(self, component: str, image: str) -> None:
        """Until every pod of a program has this image. Helm returns when new pods are ready; with maxSurge the old
        ones may still be there."""

        def images() -> list[str]:
            return [pod["spec"]["containers"][0]["image"] for pod in self.pods(component)]

        expected = [image] * PROGRAMS[component]
        with suppress(AssertionError):
            until(lambda: images() == expected, within=LIMIT)
        assert images() == expected, component

    def daemons(self) -> dict[str, tuple[str, ...]]:
        """By node: the pid of nvidia-imex, its restarts, and the time of its start. The pid alone would not do: it
        is a number in the namespace of its container."""
        return {name: self._daemon(node) for name, node in self.nodes.items()}

    def _daemon(self, node: Node) -> tuple[str, ...]:
        # Not the whole status: the line `hosts` changes with every member list.
        lines = node.machine.run("cat", f"{_DAEMON_DIRECTORY}/status").splitlines()
        status = dict(line.split("=", 1) for line in lines)
        started = node.machine.run("stat", "--format=%y", f"{_DAEMON_DIRECTORY}/started")
        assert status["state"] == "running", status
        return status["pid"], status["restarts"], started

    def refused_requests(self) -> list[tuple[str, str, str]]:
        """Requests of the programs that got 403, from the audit log: account, verb and URI."""
        text = self.control_plane.audit_log.read_text()
        events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        account = f"system:serviceaccount:{NAMESPACE}:imex-"
        own = [event for event in events if event["user"]["username"].startswith(account)]
        assert {event["user"]["username"].removeprefix(account) for event in own} == {
            "controller",
            "node",
            "webhook",
        }
        refused = [event for event in own if event.get("responseStatus", {}).get("code") == 403]
        return [(event["user"]["username"], event["verb"], event["requestURI"]) for event in refused]

    def objects(self) -> set[str]:
        """All objects of the cluster as kind/name, without those that Kubernetes makes for itself at any time."""
        resources = self.kubectl("api-resources", "--verbs=list", "--output=name").split()
        kinds = ",".join(kind for kind in resources if kind.partition(".")[0] not in _OF_KUBERNETES)
        found = [item["metadata"] | {"kind": item["kind"]} for item in self.kubectl.get(kinds, "-A")["items"]]
        ours = [item for item in found if not item.get("namespace", "").startswith("kube-")]
        return {f"{item['kind']}/{item['name']}" for item in ours}

    # What users do

    def create_domain(self, name: str) -> None:
        domain = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain"}
        self.kubectl.apply({**domain, "metadata": {"name": name}, "spec": {}})
        self.kubectl("wait", "--for=create", f"resourceclaimtemplate/{name}", "--timeout=60s", within=90)

    def create_pod(self, name: str, node: str, domain: str) -> None:
        container = {
            "name": "main",
            "image": self.image,
            "command": ["sleep", "1000000"],
            "resources": {"claims": [{"name": "channel"}]},
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": domain}],
            "containers": [container],
        }
        self.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def until_ready(self, *pods: str) -> None:
        names = [f"pod/{name}" for name in pods]
        self.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={LIMIT:.0f}s", within=LIMIT + 30)

    def execute(self, pod: str, *argv: str) -> str:
        return self.kubectl("exec", pod, "--", *argv).strip()

    def delete(self, *words: str) -> None:
        self.kubectl("delete", *words, f"--timeout={LIMIT:.0f}s", within=LIMIT + 30)

    @contextmanager
    def memory_exchange(self) -> Iterator[None]:
        """The pod `importer` writes and reads memory of the pod `exporter` all the time, with one import. Fails at
        the first error."""
        handle = self._start("exporter", EXPORT)
        assert len(handle) == 128, handle
        started = self._start("importer", EXCHANGE, handle)
        assert started == "exchanging", self._output("importer")
        yield
        ended = self._stop("importer")
        self._stop("exporter")
        # At most 20 rounds a second; an upgrade takes much longer than one.
        assert ended[-1] == "exit 0", ended
        assert int(ended[-2]) > 20, ended

    def _start(self, pod: str, program: str, *arguments: str) -> str:
        """A Python program in a pod, which ends at the end of its input. The first line of its output."""
        self.execute(pod, "sh", "-c", START, "sh", program, *arguments)
        return until(lambda: self._output(pod), within=LIMIT, what=f"output in the pod {pod}")[0]

    def _stop(self, pod: str) -> list[str]:
        self.execute(pod, "sh", "-c", "kill $(cat /tmp/holder)")
        until(lambda: self._output(pod)[-1].startswith("exit "), within=LIMIT, what=f"an end in the pod {pod}")
        return self._output(pod)

    def _output(self, pod: str) -> list[str]:
        return self.execute(pod, "cat", "/tmp/output").splitlines()


def next_version(tree: Path) -> image.Image:
    """The image of a later version of this tree, which it copies to `tree`."""
    for path in image.source_files():
        copy = tree / path.relative_to(image.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (tree / image.VERSION_FILE).write_text(f'__version__ = "{NEXT_VERSION}"\n')
    return image.build("sandbox", tree)


@contextmanager
def cluster(root: Path) -> Iterator[Installation]:
    """With the image on every node, and nothing installed."""
    built = {target: image.build(target) for target in image.NAMES}
    archives = [found.archive for found in built.values()]
    with ExitStack() as stack:
        flags = ("--enable-aggregator-routing=true",)
        control_plane = stack.enter_context(ControlPlane(root / "cp", apiserver_flags=flags))
        network = stack.enter_context(Network(root))
        nodes = {
            name: Node(name, root / name, control_plane=control_plane, network=network, archives=archives)
            for name in NODES
        }
        for node in nodes.values():
            node.start()
            stack.callback(node.stop)
        for node in nodes.values():
            node.until_ready()
        names = {target: found.name for target, found in built.items()}
        yield Installation(root, control_plane, nodes, names)
