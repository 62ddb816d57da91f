"""Runs the simulated kubelets of a cluster in one process, until it receives SIGTERM or SIGINT.

    python -m imex_sandbox.kubelet kubelets.json

The file is a `KubeletsConfig`. It contains tokens, so only its owner may read it. Requests on its control socket
kill and start single kubelets, and power single machines off and on (`imex_sandbox.control`).
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.base import logging
from imex_dra.base.errors import Misconfigured, Rejected
from imex_sandbox.control import Request, serving
from imex_sandbox.kubelet.client import ClientPool
from imex_sandbox.kubelet.config import KubeletsConfig
from imex_sandbox.kubelet.fleet import Fleet, Machine
from imex_sandbox.kubelet.hollow import HollowLauncher
from imex_sandbox.kubelet.processes import ProcessLauncher
from imex_sandbox.kubelet.server import server_tls
from imex_sandbox.process import raise_file_limit


async def run(config: KubeletsConfig) -> None:
    """Also ends if a kubelet fails, with its error."""
    clients = ClientPool(config.authority)
    fleet = Fleet(
        clients,
        config.nodes,
        launcher=HollowLauncher() if config.containers == "hollow" else ProcessLauncher(),
        tls=server_tls(config.serving.certificate, config.serving.key, config.authority),
        stand_ins=config.stand_ins,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    fleet.start()
    try:
        async with serving(config.control, lambda request: _answer(fleet, request)):
            await _first([stopped.wait(), *(machine.wait() for machine in fleet.machines.values())])
    finally:
        await fleet.stop()
        await clients.close()


async def _answer(fleet: Fleet, request: Request) -> Any:
    if request.action == "status":
        return {"down": [f"{name}/kubelet" for name, m in fleet.machines.items() if not m.kubelet_runs]}
    if request.node not in fleet.machines:
        raise Rejected(f"node {request.node} does not exist: `kubectl get nodes` lists the nodes")
    return await _act(fleet.machines[request.node], request)


async def _act(machine: Machine, request: Request) -> None:
    match request.action:
        case "kill":
            await machine.kill_kubelet()
        case "start" if not machine.kubelet_runs:
            machine.start_kubelet()
        case "power-off":
            await machine.power_off()
        case "power-on" if not machine.kubelet_runs:
            machine.power_on(request.options["boot_id"])
        case "start" | "power-on":
            raise Rejected(f"the kubelet of node {request.node} is already running: kill it first")
        case _:
            supported = "kill, start, power-off and power-on are supported"
            raise Rejected(f"the kubelet of node {request.node} cannot {request.action}: {supported}")


async def _first(works: list[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


def main() -> None:
    logging.configure("warning")
    if len(sys.argv) != 2:
        raise Misconfigured("usage: python -m imex_sandbox.kubelet FILE, where FILE lists the nodes to run")
    raise_file_limit()
    config = Path(sys.argv[1]).read_bytes()
    asyncio.run(run(msgspec.json.decode(config, type=KubeletsConfig, dec_hook=_path)))


def _path(kind: type, value: object) -> object:
    return kind(value)


if __name__ == "__main__":
    main()
