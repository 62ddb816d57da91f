"""The cluster as `imex up` runs it: what is started, in which order, and what must not end (`supervisor`).

What takes long begins early: the crew loads its modules while the API server does, and the control plane's other
programs become ready while nodes register.
"""

import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.errors import NotYet, Unavailable
from imex_dra.base.files import write_atomically
from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster import manifests, readiness, settings, tokens
from imex_dra.sandbox.cluster.gateway import Gateway
from imex_dra.sandbox.cluster.handle import Description, NodeEntry
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.cluster.settings import Options
from imex_dra.sandbox.cluster.steps import Steps
from imex_dra.sandbox.cluster.supervisor import Supervisor
from imex_dra.sandbox.kubernetes import binaries, driver, kubeconfig, mpioperator
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.mpioperator import MpiOperator
from imex_dra.sandbox.noderoot import NodeRoot
from imex_dra.sandbox.process import Process
from imex_dra.sandbox.racks import SimulatedNode

CONTROLLER, APISERVER = "imex-controller", "kube-apiserver"
_READY_WITHIN = 240.0
_CREW, _KUBELETS = "imex_dra.sandbox.cluster.crew", "imex_dra.sandbox.kubelet.program"


class Host:
    def __init__(self, options: Options, places: Places, number: int, gateway: Gateway) -> None:
        self.options = options
        self.places = places
        self.number = number
        self.gateway = gateway
        self.nodes: Sequence[SimulatedNode] = racks.layout(options.cluster, number)
        self.supervisor = Supervisor()
        self.controller = driver.controller(places.account(CONTROLLER), places.log(CONTROLLER))
        self._running = ExitStack()
        self._operator: MpiOperator | None = None

    def start(self, steps: Steps) -> None:
        """From the main thread, which the processes are bound to."""
        count = len(self.nodes)
        with steps.step("real control plane: etcd, kube-apiserver, controller-manager, scheduler"):
            self._prepare_nodes()
            self._start_control_plane()
            self._install_mpi_operator(steps)
        with steps.step("what the driver needs to know: CRDs, rights, device class"):
            manifests.apply(self.control_plane.kubectl)
        with steps.step(
            f"{count} kubelets" + (f", {count} nodes' drivers, controller" if self.options.driver else "")
        ):
            self._start_nodes()
        with steps.step(f"{count} nodes Ready" + (" and offering seats" if self.options.driver else "")):
            self._until_ready()
        if self._operator:
            with steps.step("MPI Operator"):
                self._operator.until_ready()
        self._describe()

    def stop(self) -> None:
        """All at once, as a power failure of the whole site: nothing of it is needed again."""
        self._running.close()

    def _prepare_nodes(self) -> None:
        for node in self.nodes:
            NodeRoot(self.places.node(node.name)).make(node.hardware, address=node.address)
        if self.options.driver:
            told = settings.for_crew(self.options, self.places, self.nodes)
            self.supervisor.need(self._module(_CREW, told, "crew"))

    def _start_control_plane(self) -> None:
        users = {settings.user(node): ["system:nodes"] for node in self.nodes}
        self.control_plane = ControlPlane(self.places.control_plane, logs=self.places.logs, users=users)
        self._running.callback(self.control_plane.stop)
        self.control_plane.launch()
        self.supervisor.need(*self.control_plane.processes)
        write_atomically(self.places.kubeconfig, self.control_plane.kubeconfig().read_bytes(), mode=0o600)
        self._servers: Mapping[str, str] = self.gateway.start(self.control_plane, self.nodes, self.places)
        self._running.callback(self.gateway.stop)
        self.supervisor.need(self.gateway.process)

    def _install_mpi_operator(self, steps: Steps) -> None:
        """Without waiting: it is started when the nodes have been."""
        if self.options.hollow:
            return
        if binaries.missing([mpioperator.NAME]):
            steps.say("MPIJobs are unknown here, for want of the MPI Operator: `make kube` builds it")
            return
        self._operator = MpiOperator(self.control_plane, self.places.logs)
        self._running.callback(self._operator.stop)
        self._operator.install()

    def _start_nodes(self) -> None:
        told = settings.for_kubelets(self.options, self.places, self.nodes, self.control_plane, self._servers)
        self.supervisor.need(self._module(_KUBELETS, told, "kubelets"))
        if self.options.driver:
            self._start_controller()
            self._hand_out_tokens()
        if self._operator:
            self.supervisor.keep(mpioperator.NAME, self._operator.start())

    def _start_controller(self) -> None:
        token = self.supervisor.wait(tokens.controller(self.places.kubeconfig))
        self._write_account(self.places.account(CONTROLLER), CONTROLLER, token, self.control_plane.url)
        self.supervisor.keep(CONTROLLER, self._run(self.controller))

    def _hand_out_tokens(self) -> None:
        """All at the same moment: who joins its partition late has its peers make their connections anew."""
        names = [node.name for node in self.nodes]
        try:
            issued = self.supervisor.wait(tokens.issue(self.places.kubeconfig, names, within=_READY_WITHIN))
        except TimeoutError:
            words = f"not every node registered in {_READY_WITHIN:.0f} s"
            raise Unavailable(f"{words}. See the logs in {self.places.logs}") from None
        for node, token in issued.items():
            self._write_account(self.places.account(node), node, token, self._servers[node])

    def _write_account(self, path: Path, user: str, token: str, server: str) -> None:
        """Complete when it appears: somebody may be waiting for it."""
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        authority, credential = self.control_plane.authority.certificate, kubeconfig.bearer(token)
        kubeconfig.write(fresh, url=server, authority=authority, user=user, credential=credential)
        fresh.rename(path)

    def _until_ready(self) -> None:
        names, driver = [node.name for node in self.nodes], self.options.driver
        waiting = readiness.until_ready(self.places.kubeconfig, names, driver=driver, within=_READY_WITHIN)
        try:
            self.supervisor.wait(waiting)
        except NotYet as error:
            raise Unavailable(f"{error}. See the logs in {self.places.logs}") from error
        self.control_plane.until_ready()

    def _module(self, module: str, told: Struct, name: str) -> Process:
        """A program of ours that reads what it is to do from a file."""
        file = self.places.state / f"{name}.json"
        write_atomically(file, msgspec.json.encode(told, enc_hook=str), mode=0o600)
        return self._run(Process(name, [sys.executable, "-m", module, file], log=self.places.log(name)))

    def _run(self, process: Process) -> Process:
        self._running.callback(process.stop, within=0)
        process.start()
        return process

    def _describe(self) -> None:
        entries = tuple(
            NodeEntry(node.name, node.rack, node.address, node.hardware.partition) for node in self.nodes
        )
        name, server = self.options.cluster.name, self.control_plane.url
        description = Description(name, self.number, server, entries, self.options.driver)
        write_atomically(self.places.description, msgspec.json.encode(description))
