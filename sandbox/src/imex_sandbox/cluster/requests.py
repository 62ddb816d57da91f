"""Carries out the requests that arrive at `control.sock`.

The host acts on the control plane and the controller itself, and forwards requests about a node to the kubelets,
the drivers or the proxy.
"""

import signal
import uuid
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.host import APISERVER, CONTROLLER, Host
from imex_sandbox.control import Request, ask_async
from imex_sandbox.noderoot import NodeRoot


class RequestHandler:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._nodes = {node.name for node in host.nodes}

    async def handle(self, request: Request) -> Any:
        host = self._host
        match request.action, request.node, request.program:
            case "status", _, _:
                return await self._status()
            case "proxy", node, _:
                return await host.proxy.set_behavior(node, request.options)
            case action, "", program if program == CONTROLLER and host.options.driver:
                return self._act_on_controller(action)
            case action, "", program if program == APISERVER:
                return self._act_on_apiserver(action)
            case action, "", program:
                raise Rejected(
                    f"cannot {action} {program or 'the cluster'}: name a node, {CONTROLLER} or {APISERVER}"
                )
        return await self._act_on_node(request)

    async def _status(self) -> dict[str, Any]:
        host, down = self._host, sorted(self._host.supervisor.killed)
        for socket in self._node_sockets():
            down += (await ask_async(socket, Request("status")))["down"]
        return {"name": host.options.cluster.name, "number": host.number, "nodes": len(host.nodes), "down": down}

    def _act_on_controller(self, action: str) -> Any:
        host, controller = self._host, self._host.controller
        match action:
            case "kill":
                host.supervisor.killed.add(CONTROLLER)
                controller.kill()
                controller.wait(within=10)
            case "start":
                host.supervisor.killed.discard(CONTROLLER)
                if not controller.running:
                    controller.start()
            case "hang":
                controller.kill(signal.SIGSTOP)
            case "resume":
                controller.kill(signal.SIGCONT)
            case "pid":
                return controller.pid
            case _:
                raise Rejected(f"{CONTROLLER} does not support {action}: use kill, start, hang, resume or pid")
        return None

    def _act_on_apiserver(self, action: str) -> None:
        host = self._host
        match action:
            case "kill":
                # Before it dies: the supervisor must not take its end for a failure.
                host.supervisor.killed.add(APISERVER)
                host.control_plane.kill_apiserver()
            case "start":
                host.control_plane.start_apiserver()
                host.supervisor.killed.discard(APISERVER)
            case "hang":
                host.control_plane.hang_apiserver()
            case "resume":
                host.control_plane.resume_apiserver()
            case _:
                raise Rejected(f"{APISERVER} does not support {action}: use kill, start, hang or resume")

    async def _act_on_node(self, request: Request) -> Any:
        if request.node not in self._nodes:
            raise Rejected(f"there is no node {request.node}: `kubectl get nodes` lists the nodes")
        match request.action, request.program:
            case "power-off", _:
                return await self._forward_to_all(request)
            case "power-on", _:
                return await self._power_on(request)
            case _, "kubelet":
                return await ask_async(self._host.paths.kubelets_socket, request)
        if not self._host.options.driver:
            raise Rejected("this cluster was started with --no-driver: the only program of a node is its kubelet")
        return await ask_async(self._host.paths.drivers_socket, request)

    async def _power_on(self, request: Request) -> str:
        boot_id = str(uuid.uuid4())
        NodeRoot(self._host.paths.node(request.node)).boot(boot_id)
        await self._forward_to_all(msgspec.structs.replace(request, options={"boot_id": boot_id}))
        return boot_id

    async def _forward_to_all(self, request: Request) -> None:
        for socket in self._node_sockets():
            await ask_async(socket, request)

    def _node_sockets(self) -> list[Path]:
        """The control sockets of the processes that run programs of nodes."""
        paths = self._host.paths
        return [paths.kubelets_socket, *([paths.drivers_socket] if self._host.options.driver else [])]
