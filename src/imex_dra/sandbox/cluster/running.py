"""`imex up` from its first to its last moment: take the name, start everything, serve, leave nothing behind."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox import control
from imex_dra.sandbox.cluster.answers import Answers
from imex_dra.sandbox.cluster.hold import Hold
from imex_dra.sandbox.cluster.host import Host
from imex_dra.sandbox.cluster.janitor import Janitor
from imex_dra.sandbox.cluster.places import Places, claim_directory
from imex_dra.sandbox.cluster.settings import Options
from imex_dra.sandbox.cluster.steps import Steps
from imex_dra.sandbox.cluster.supervisor import LOOK
from imex_dra.sandbox.control import Request
from imex_dra.sandbox.descriptors import raise_limit
from imex_dra.sandbox.faults.gateway import LineGateway

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(options: Options) -> None:
    """Until somebody stops it; raises if the cluster could not start, or could not go on."""
    places, steps = Places(options.cluster.name), Steps()
    hold = Hold(options.cluster.name)
    try:
        host = Host(options, places, hold.number, LineGateway())
        places.check(max((node.name for node in host.nodes), key=len))
        _furnish(places)
    except BaseException:
        hold.release()
        raise
    janitor = Janitor(_perishable(places), hold.descriptors)
    for number in _STOPPING:
        signal.signal(number, _interrupt)
    try:
        raise_limit()
        host.start(steps)
        asyncio.run(_serve(host, places, steps))
    except KeyboardInterrupt:
        steps.say("stopped while it started")
    finally:
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        with steps.step("everything is stopped and removed"):
            host.stop()
            hold.release()
            janitor.sweep()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _furnish(places: Places) -> None:
    """Both directories are new: whatever an earlier cluster of this name left is of no use."""
    claim_directory(places.run.parent)
    for directory in (places.run, places.state):
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
        claim_directory(directory)
    for directory in (places.logs, places.accounts, places.fabric):
        directory.mkdir(mode=0o700)
    places.pid.write_text(f"{os.getpid()}\n")


def _perishable(places: Places) -> list[Path]:
    """Everything but logs."""
    told = [places.state / f"{name}.json" for name in ("kubelets", "crew")]
    known = [places.kubeconfig, places.pid, places.description, places.accounts, places.control_plane]
    return [places.run, *known, *told]


async def _serve(host: Host, places: Places, steps: Steps) -> None:
    stopped = asyncio.Event()
    for number in _STOPPING:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    answers = Answers(host)

    async def answer(request: Request) -> Any:
        if request.do == "stop":
            return stopped.set()
        return await answers.answer(request)

    steps.say(f"{len(host.nodes)} nodes after {steps.elapsed:.1f} s; imex down --name {places.name} ends them.")
    steps.say("In another shell:")
    click.echo(f"export KUBECONFIG={places.kubeconfig}")
    async with control.serving(places.control, answer):  # last: whoever finds it finds the lines above, too
        while not stopped.is_set():
            if words := host.supervisor.failure():
                raise Unavailable(words)
            for words in host.supervisor.revive():
                steps.say(words)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK)
