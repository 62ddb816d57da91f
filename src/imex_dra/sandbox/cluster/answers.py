"""Who carries out which request that comes through `control.sock`: the host itself, its kubelets or its crew."""

import signal
import uuid
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.cluster.host import APISERVER, CONTROLLER, Host
from imex_dra.sandbox.control import Request, forward
from imex_dra.sandbox.noderoot import NodeRoot


class Answers:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._nodes = {node.name for node in host.nodes}

    async def answer(self, request: Request) -> Any:
        host = self._host
        match request.do, request.node, request.program:
            case "status", _, _:
                return await self._status()
            case "gateway", _, _:
                return await host.gateway.answer(request)
            case "compact", "", _:
                return host.control_plane.compact()
            case do, "", program if program == CONTROLLER and host.options.driver:
                return self._act_on_controller(do)
            case do, "", program if program == APISERVER:
                return self._act_on_apiserver(do)
            case do, "", program:
                raise Rejected(f"can't {do} {program or 'the cluster'}: name a node, {CONTROLLER} or {APISERVER}")
        return await self._act_on_node(request)

    async def _status(self) -> dict[str, Any]:
        host, down = self._host, sorted(self._host.supervisor.killed)
        for place in self._processes():
            down += (await forward(place, Request("status")))["down"]
        return {"name": host.options.cluster.name, "number": host.number, "nodes": len(host.nodes), "down": down}

    def _act_on_controller(self, do: str) -> Any:
        host, controller = self._host, self._host.controller
        match do:
            case "kill":
                host.supervisor.killed.add(CONTROLLER)
                controller.kill()
                controller.ended(within=10)
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
                raise Rejected(f"{CONTROLLER} can't {do}")
        return None

    def _act_on_apiserver(self, do: str) -> None:
        match do:
            case "kill":
                self._host.supervisor.killed.add(APISERVER)
                self._host.control_plane.kill_apiserver()
            case "start":
                self._host.control_plane.start_apiserver()
                self._host.supervisor.killed.discard(APISERVER)
            case "hang":
                self._host.control_plane.hang_apiserver()
            case "resume":
                self._host.control_plane.resume_apiserver()
            case _:
                raise Rejected(f"{APISERVER} can't {do}")

    async def _act_on_node(self, request: Request) -> Any:
        if request.node not in self._nodes:
            first = self._host.nodes[0].name
            raise Rejected(f"there is no node {request.node}: they are called {first} and so on")
        match request.do, request.program:
            case "power-off", _:
                return await self._on_the_node(request)
            case "power-on", _:
                return await self._power_on(request)
            case _, "kubelet":
                return await forward(self._host.places.kubelets, request)
        if not self._host.options.driver:
            raise Rejected("this cluster was started without the driver: its nodes have a kubelet and no more")
        return await forward(self._host.places.crew, request)

    async def _power_on(self, request: Request) -> str:
        boot_id = request.options.get("boot_id") or str(uuid.uuid4())
        NodeRoot(self._host.places.node(request.node)).boot(boot_id)
        await self._on_the_node(msgspec.structs.replace(request, options={"boot_id": boot_id}))
        return boot_id

    async def _on_the_node(self, request: Request) -> None:
        for place in self._processes():
            await forward(place, request)

    def _processes(self) -> list[Path]:
        """Where those who play the nodes are told what to do."""
        places = self._host.places
        return [places.kubelets, *([places.crew] if self._host.options.driver else [])]
