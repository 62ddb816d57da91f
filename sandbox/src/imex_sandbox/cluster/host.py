"""Starts and stops every process of a cluster, in order.

Slow starts overlap: the drivers load their modules while the API server starts, and the rest of the control plane
becomes ready while nodes register.
"""

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from imex_dra.base.errors import NotYet, Unavailable
from imex_dra.base.files import write_atomically
from imex_sandbox import racks
from imex_sandbox.cluster import installation, settings
from imex_sandbox.cluster.handle import Description, NodeEntry
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.cluster.settings import EMBEDDED, KUBERNETES, Options
from imex_sandbox.cluster.supervisor import Supervisor
from imex_sandbox.kubernetes import binaries, driver, kubectl, mpioperator
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import AnyControlPlane, EmbeddedControlPlane
from imex_sandbox.kubernetes.mpioperator import MpiOperator
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.process import Process
from imex_sandbox.proxy.server import ProxyProcess
from imex_sandbox.racks import SimulatedNode

CONTROLLER, APISERVER = "imex-controller", "kube-apiserver"
_CONTROL_PLANES = {
    EMBEDDED: "embedded, not Kubernetes (--control-plane kubernetes runs the real one)",
    KUBERNETES: "etcd, kube-apiserver, controller-manager, scheduler",
}
_READY_WITHIN = 240.0
_DRIVERS_MODULE, _KUBELETS_MODULE = "imex_sandbox.cluster.drivers", "imex_sandbox.kubelet"


class StartupLog:
    """What `imex up` prints to stderr: a line for each step, with the time that it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        if self._is_terminal:
            click.echo(f"{'':>8}   {title} ...", nl=False, err=True)
        try:
            yield
        except BaseException:
            self._replace_line(f"{'failed':>8}   {title}")
            raise
        self._replace_line(f"{time.monotonic() - began:6.1f} s   {title}")

    def print(self, message: str) -> None:
        click.echo(message, err=True)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _replace_line(self, line: str) -> None:
        click.echo(f"\r\x1b[2K{line}" if self._is_terminal else line, err=True)


class Host:
    def __init__(self, options: Options, paths: ClusterPaths, number: int) -> None:
        self.options = options
        self.paths = paths
        self.number = number
        self.nodes: Sequence[SimulatedNode] = racks.layout(options.cluster, number)
        """Of the racks. Requests name them, and the driver runs on them."""
        extra = racks.control_plane_node(options.cluster, number)
        self._all_nodes = [*self.nodes, extra] if extra else self.nodes
        self.supervisor = Supervisor()
        self.proxy = ProxyProcess(paths.run, paths.log("proxy"))
        self.controller = driver.controller(
            paths.driver_kubeconfig(CONTROLLER),
            paths.log(CONTROLLER),
            "--no-daemon-certificates",  # all daemons run on this machine
            *settings.flags(options.cluster.driver.controller_options),
        )
        self._running = ExitStack()
        self._operator: MpiOperator | None = None

    def start(self, log: StartupLog) -> None:
        """Call this from the main thread: a process dies with the thread that started it."""
        count = len(self._all_nodes)
        with log.step(f"control plane: {_CONTROL_PLANES[self.options.control_plane]}"):
            self._prepare_nodes()
            self._start_control_plane()
            self._install_mpi_operator(log)
        with log.step("driver manifests: CRDs, RBAC, DeviceClass"):
            is_real = isinstance(self.control_plane, ControlPlane)
            installation.apply_manifests(self.control_plane.kubectl, wait=is_real)
        with log.step(
            f"{count} kubelets" + (", the driver on each node, controller" if self.options.driver else "")
        ):
            self._start_nodes()
        with log.step(f"{count} nodes Ready" + (", ResourceSlices published" if self.options.driver else "")):
            self._wait_until_ready()
        if self._operator:
            with log.step("MPI Operator"):
                self._operator.until_ready()
        self._write_description()

    def stop(self) -> None:
        """Kill everything: nothing of the cluster is needed again."""
        self._running.close()

    def _prepare_nodes(self) -> None:
        for node in self._all_nodes:
            NodeRoot(self.paths.node(node.name)).make(node.hardware, address=node.address)
        if self.options.driver:
            content = settings.driver_settings(self.options, self.paths, self.nodes)
            self.supervisor.require(
                self._start_module("drivers", _DRIVERS_MODULE, self.paths.drivers_settings, content)
            )

    def _start_control_plane(self) -> None:
        users = {settings.node_user(node): ["system:nodes"] for node in self._all_nodes}
        start = EmbeddedControlPlane if self.options.control_plane == EMBEDDED else ControlPlane
        self.control_plane: AnyControlPlane = start(self.paths.control_plane, logs=self.paths.logs, users=users)
        self._running.callback(self.control_plane.stop)
        # Before the control plane is ready: what takes time at first is to import modules.
        self.proxy.launch(self.control_plane, [node.name for node in self._all_nodes])
        self._running.callback(self.proxy.stop)
        self.control_plane.launch()
        self.supervisor.require(*self.control_plane.processes)
        write_atomically(self.paths.kubeconfig, self.control_plane.kubeconfig().read_bytes(), mode=0o600)
        self._servers: Mapping[str, str] = self.proxy.until_ready()
        self.supervisor.require(self.proxy.process)
        self._start_kubelets()

    def _install_mpi_operator(self, log: StartupLog) -> None:
        """Begin the installation; the operator is started after the nodes."""
        if self.options.hollow or not isinstance(self.control_plane, ControlPlane):
            return  # the embedded control plane has a controller for MPIJobs
        if binaries.missing([mpioperator.NAME]):
            log.print("the MPI Operator is not built, so there are no MPIJobs: `make kube` builds it")
            return
        self._operator = MpiOperator(self.control_plane, self.paths.logs)
        self._running.callback(self._operator.stop)
        self._operator.install()

    def _start_kubelets(self) -> None:
        content = settings.kubelet_settings(
            self.options, self.paths, self._all_nodes, self.control_plane, self._servers
        )
        self.supervisor.require(
            self._start_module("kubelets", _KUBELETS_MODULE, self.paths.kubelets_settings, content)
        )

    def _start_nodes(self) -> None:
        if self.options.driver:
            self._start_controller()
            self._write_node_kubeconfigs()
        if self._operator:
            self.supervisor.restart_on_exit(mpioperator.NAME, self._operator.start())

    def _start_controller(self) -> None:
        token = self.supervisor.run(installation.controller_token(self.paths.kubeconfig))
        self._write_kubeconfig(CONTROLLER, token, self.control_plane.url)
        self.supervisor.restart_on_exit(CONTROLLER, self._start_process(self.controller))

    def _write_node_kubeconfigs(self) -> None:
        # All at the same time: a node that joins its partition late makes its peers reconnect.
        names = [node.name for node in self.nodes]
        try:
            tokens = self.supervisor.run(
                installation.node_tokens(self.paths.kubeconfig, names, within=_READY_WITHIN)
            )
        except TimeoutError:
            raise Unavailable(
                f"not all nodes registered within {_READY_WITHIN:.0f} s: see the logs in {self.paths.logs}"
            ) from None
        for node, token in tokens.items():
            self._write_kubeconfig(node, token, self._servers[node])

    def _write_kubeconfig(self, user: str, token: str, server: str) -> None:
        # The rename makes it appear complete: a driver may be waiting for it.
        path = self.paths.driver_kubeconfig(user)
        temporary = path.with_suffix(f".{secrets.token_hex(4)}")
        authority, credential = self.control_plane.authority.certificate, kubectl.token_credential(token)
        kubectl.write_kubeconfig(temporary, url=server, authority=authority, user=user, credential=credential)
        temporary.rename(path)

    def _wait_until_ready(self) -> None:
        names = [node.name for node in self._all_nodes]
        publishing = [node.name for node in self.nodes] if self.options.driver else []
        try:
            self.supervisor.run(
                installation.wait_until_ready(self.paths.kubeconfig, names, publishing, within=_READY_WITHIN)
            )
        except NotYet as error:
            raise Unavailable(f"{error}; see the logs in {self.paths.logs}") from error
        self.control_plane.until_ready()
        installation.mark_nodes(self.control_plane.kubectl, self._all_nodes)

    def _start_module(self, name: str, module: str, file: Path, content: Struct) -> Process:
        """Start a Python module that reads its settings from a file."""
        write_atomically(file, msgspec.json.encode(content, enc_hook=str), mode=0o600)
        return self._start_process(Process(name, [sys.executable, "-m", module, file], log=self.paths.log(name)))

    def _start_process(self, process: Process) -> Process:
        self._running.callback(process.stop, within=0)
        process.start()
        return process

    def _write_description(self) -> None:
        entries = tuple(
            NodeEntry(node.name, node.rack, node.address, node.hardware.partition) for node in self.nodes
        )
        description = Description(self.options.cluster.name, self.number, entries)
        write_atomically(self.paths.description, msgspec.json.encode(description))
