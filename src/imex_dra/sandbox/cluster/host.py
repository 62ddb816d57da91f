"""The cluster as `imex up` runs it: what is started in which order, and who carries out which request."""

import asyncio
import secrets
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.base.errors import ImexError, Rejected, Unavailable
from imex_dra.base.files import write_atomically
from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster import crew, manifests, readiness, tokens
from imex_dra.sandbox.cluster.gateway import Gateway
from imex_dra.sandbox.cluster.handle import Description, NodeEntry
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.cluster.steps import Steps
from imex_dra.sandbox.control import Request, forward
from imex_dra.sandbox.kubelet import program as kubelets
from imex_dra.sandbox.kubelet.fleet import Member
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.standins import Rule
from imex_dra.sandbox.kubernetes import binaries, driver, kubeconfig, mpioperator
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.kubernetes.mpioperator import MpiOperator
from imex_dra.sandbox.noderoot import NodeRoot
from imex_dra.sandbox.process import Process
from imex_dra.sandbox.racks import SimulatedNode

CONTROLLER, APISERVER = "imex-controller", "kube-apiserver"
_READY_WITHIN = 240.0


class Wish(Struct, frozen=True):
    """What `imex up` was asked for."""

    cluster: racks.Cluster
    driver: bool = True
    apart: bool = False
    """Every program of every node in a process of its own."""
    hollow: bool = False
    """Containers that only pretend."""
    rules: tuple[Rule, ...] = ()


class Host:
    def __init__(self, wish: Wish, places: Places, number: int, gateway: Gateway) -> None:
        self._wish = wish
        self._places = places
        self._number = number
        self._gateway = gateway
        self.nodes: Sequence[SimulatedNode] = racks.layout(wish.cluster, number)
        self._running = ExitStack()
        self._killed: set[str] = set()
        self._operator: MpiOperator | None = None

    def start(self, steps: Steps) -> None:
        """From the main thread, which the processes are bound to."""
        count = len(self.nodes)
        with steps.step("real control plane: etcd, kube-apiserver, controller-manager, scheduler"):
            self._start_control_plane()
            self._install_mpi_operator(steps)
        with steps.step("what the driver needs to know: CRDs, rights, device class"):
            manifests.apply(self._control_plane.kubectl)
        with steps.step(
            f"{count} kubelets" + (f", {count} nodes' drivers, controller" if self._wish.driver else "")
        ):
            self._start_nodes()
        with steps.step(f"{count} nodes Ready" + (" and offering seats" if self._wish.driver else "")):
            self._until_ready()
        if self._operator:
            with steps.step("MPI Operator"):
                self._operator.until_ready()
        self._describe()

    def stop(self) -> None:
        """All at once, as a power failure of the whole site: nothing of it is needed again."""
        self._running.close()

    def failure(self) -> str:
        """Why the cluster can't go on, in words; empty while it can. A controller that ended is started again."""
        for process in self._vital:
            if not process.running:
                return f"{process.name} ended unexpectedly; see {process.log}"
        if self._wish.driver and CONTROLLER not in self._killed and not self._controller.running:
            self._controller.start()
        return ""

    async def answer(self, request: Request) -> Any:
        match request.do, request.node, request.program:
            case "status", _, _:
                return await self._status()
            case "gateway", _, _:
                return await self._gateway.answer(request)
            case "compact", "", _:
                return self._control_plane.compact()
            case do, "", program if program == CONTROLLER and self._wish.driver:
                return self._act_on_controller(do)
            case do, "", program if program == APISERVER:
                return self._act_on_apiserver(do)
            case do, "", program:
                raise Rejected(f"can't {do} {program or 'the cluster'}: name a node, {CONTROLLER} or {APISERVER}")
        return await self._act_on_node(request)

    def _start_control_plane(self) -> None:
        users = {f"system:node:{node.name}": ["system:nodes"] for node in self.nodes}
        self._control_plane = ControlPlane(self._places.control_plane, users=users)
        self._running.enter_context(self._control_plane)
        write_atomically(self._places.kubeconfig, self._control_plane.kubeconfig().read_bytes(), mode=0o600)
        self._servers: Mapping[str, str] = self._gateway.start(self._control_plane, self.nodes, self._places)
        self._running.callback(self._gateway.stop)

    def _start_nodes(self) -> None:
        for node in self.nodes:
            NodeRoot(self._places.node(node.name)).make(node.hardware, address=node.address)
        self._vital = [self._process("kubelets", kubelets, self._kubelet_settings())]
        if self._wish.driver:
            self._vital.append(self._process("crew", crew, self._crew_settings()))
            self._start_controller()
            asyncio.run(self._hand_out_tokens())
        if self._operator:
            self._vital.append(self._operator.start())

    def _install_mpi_operator(self, steps: Steps) -> None:
        """Without waiting: it is started when the nodes have been."""
        if self._wish.hollow:
            return
        if binaries.missing([mpioperator.NAME]):
            steps.say("MPIJobs are unknown here, for want of the MPI Operator: `make kube` builds it")
            return
        self._operator = MpiOperator(self._control_plane, self._places.logs)
        self._running.callback(self._operator.stop)
        self._operator.install()

    def _start_controller(self) -> None:
        token = asyncio.run(tokens.controller(self._places.kubeconfig))
        account = self._account(self._places.accounts / f"{CONTROLLER}.kubeconfig", CONTROLLER, token)
        self._controller = driver.controller(account, self._places.log(CONTROLLER))
        self._run(self._controller)

    async def _hand_out_tokens(self) -> None:
        def deliver(node: str, token: str) -> None:
            path = self._places.account(node)
            self._account(path, node, token, self._servers[node])

        names = [node.name for node in self.nodes]
        try:
            await tokens.issue(self._places.kubeconfig, names, deliver, within=_READY_WITHIN)
        except TimeoutError:
            raise Unavailable(f"not every node registered in {_READY_WITHIN:.0f} s. {self._words()}") from None

    def _until_ready(self) -> None:
        names = [node.name for node in self.nodes]
        try:
            asyncio.run(
                readiness.until_ready(
                    self._places.kubeconfig, names, driver=self._wish.driver, within=_READY_WITHIN
                )
            )
        except ImexError as error:
            raise Unavailable(f"{error}. {self._words()}") from error

    def _words(self) -> str:
        return self.failure() or f"See the logs in {self._places.logs}"

    def _account(self, path: Path, user: str, token: str, server: str = "") -> Path:
        """Complete when it appears: somebody may be waiting for it."""
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        kubeconfig.write(
            fresh,
            url=server or self._control_plane.url,
            authority=self._control_plane.authority.certificate,
            user=user,
            credential=kubeconfig.bearer(token),
        )
        return fresh.rename(path)

    def _kubelet_settings(self) -> kubelets.Settings:
        return kubelets.Settings(
            server=self._control_plane.url,
            authority=self._control_plane.authority.certificate,
            serving=self._serving(),
            nodes=[self._member(index, node) for index, node in enumerate(self.nodes)],
            containers="hollow" if self._wish.hollow else "processes",
            rules=self._wish.rules,
            control=self._places.kubelets,
        )

    def _serving(self) -> kubelets.Serving:
        addresses = [f"IP:{node.address}" for node in self.nodes]
        own = self._control_plane.authority.server("kubelets", addresses)
        return kubelets.Serving(own.certificate, own.key)

    def _member(self, index: int, node: SimulatedNode) -> Member:
        facts = NodeFacts(
            node.name,
            node.address,
            node.hardware.boot_id,
            pod_network=f"10.{244 + index // 256}.{index % 256}",
            labels=labels(node),
            gpus=node.profile.gpus,
        )
        token = self._control_plane.identities.token(f"system:node:{node.name}")
        return Member(facts, self._places.node(node.name), token, self._servers[node.name])

    def _crew_settings(self) -> crew.Settings:
        posts = [
            crew.Post(node.name, node.address, self._places.node(node.name), self._places.account(node.name))
            for node in self.nodes
        ]
        return crew.Settings(posts, self._places.fabric, self._places.logs, self._places.crew, self._wish.apart)

    def _process(self, name: str, module: Any, settings: Struct) -> Process:
        file = self._places.state / f"{name}.json"
        write_atomically(file, msgspec.json.encode(settings, enc_hook=str), mode=0o600)
        argv = [sys.executable, "-m", module.__name__, file]
        process = Process(name, argv, log=self._places.log(name))
        self._run(process)
        return process

    def _run(self, process: Process) -> None:
        process.start()
        self._running.callback(process.stop, within=0)

    def _describe(self) -> None:
        entries = tuple(
            NodeEntry(node.name, node.rack, node.address, node.hardware.partition) for node in self.nodes
        )
        description = Description(
            self._wish.cluster.name, self._number, self._control_plane.url, entries, self._wish.driver
        )
        write_atomically(self._places.description, msgspec.json.encode(description))

    async def _status(self) -> dict[str, Any]:
        down = sorted(self._killed)
        if self._wish.driver:
            down += (await forward(self._places.crew, Request("status")))["down"]
        return {
            "name": self._wish.cluster.name,
            "number": self._number,
            "nodes": len(self.nodes),
            "down": down,
        }

    def _act_on_controller(self, do: str) -> Any:
        match do:
            case "kill":
                self._killed.add(CONTROLLER)
                self._controller.stop(within=0)
            case "start":
                self._killed.discard(CONTROLLER)
                if not self._controller.running:
                    self._controller.start()
            case "hang":
                self._controller.kill(signal.SIGSTOP)
            case "resume":
                self._controller.kill(signal.SIGCONT)
            case "pid":
                return self._controller.pid
            case _:
                raise Rejected(f"{CONTROLLER} can't {do}")
        return None

    def _act_on_apiserver(self, do: str) -> None:
        match do:
            case "kill":
                self._killed.add(APISERVER)
                self._control_plane.kill_apiserver()
            case "start":
                self._killed.discard(APISERVER)
                self._control_plane.start_apiserver()
            case _:
                raise Rejected(f"{APISERVER} can't {do}")

    async def _act_on_node(self, request: Request) -> Any:
        if request.node not in {node.name for node in self.nodes}:
            raise Rejected(f"there is no node {request.node}: they are called {self.nodes[0].name} and so on")
        match request.do:
            case "power-off":
                return await self._power_off(request)
            case "power-on":
                return await self._power_on(request)
        where = self._places.kubelets if request.program == "kubelet" else self._places.crew
        if where == self._places.crew and not self._wish.driver:
            raise Rejected("this cluster was started without the driver: its nodes have a kubelet and no more")
        return await forward(where, request)

    async def _power_off(self, request: Request) -> None:
        await forward(self._places.kubelets, request)
        if self._wish.driver:
            await forward(self._places.crew, request)

    async def _power_on(self, request: Request) -> str:
        boot_id = request.options.get("boot_id") or str(uuid.uuid4())
        NodeRoot(self._places.node(request.node)).boot(boot_id)
        told = msgspec.structs.replace(request, options={"boot_id": boot_id})
        await forward(self._places.kubelets, told)
        if self._wish.driver:
            await forward(self._places.crew, told)
        return boot_id


def labels(node: SimulatedNode) -> dict[str, str]:
    """What the GPU operator would write; the clique label is our controller's."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(node.profile.gpus),
        "nvidia.com/gpu.product": node.profile.product.replace(" ", "-"),
        "sandbox.imex-dra.io/rack": node.rack,
    }
