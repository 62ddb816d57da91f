"""Containers without processes: they follow a script, and cost a timer each.

By default one runs until it is asked to end, and ends at once, with 0. An annotation of the pod says otherwise:

    hollow.sandbox.imex-dra.io/<container>: '{"runs": 2, "code": 3, "ends": 0.5}'

ends by itself after 2 s with code 3; asked before, it ends half a second later.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.kubelet.commands import Command, Execution
from imex_dra.sandbox.kubelet.containers import Exit, Order, Task

ANNOTATION = "hollow.sandbox.imex-dra.io/"
KILLED = 137


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    runs: float | None = None
    code: int = 0
    ends: float = 0.0


class HollowTask:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._end: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._asked = False
        if script.runs is not None:
            self._later(script.runs)

    async def wait(self) -> Exit:
        return await self._end

    def terminate(self) -> None:
        if not self._asked:
            self._asked = True
            self._later(self._script.ends)

    def kill(self) -> None:
        self._finish(KILLED)

    async def enter(self, command: Command) -> Execution:
        raise Rejected(f"a hollow container has no inside to run {command.argv[0]} in")

    def _later(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._finish, self._script.code)

    def _finish(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result(Exit(code))


class Hollow:
    has_inside = False

    async def launch(self, order: Order, log: Path) -> Task:
        return HollowTask(script_of(order))


def script_of(order: Order) -> Script:
    text = order.pod.metadata.annotations.get(f"{ANNOTATION}{order.container.name}")
    if text is None:
        return Script()
    try:
        return msgspec.json.decode(text, type=Script)
    except msgspec.MsgspecError as error:
        raise Rejected(f"annotation {ANNOTATION}{order.container.name}: {error}") from error
