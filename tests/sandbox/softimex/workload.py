"""A process that runs commands of the test with the memory library, and the test's interface to it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from imex_sandbox.softimex import memory
from imex_sandbox.softimex.memory import CudaError
from tests.paths import ROOT
from tests.sandbox.softimex.rack import DIES_WITH_US, Node

CHANNELS = "dev/nvidia-caps-imex-channels"


def create_channels(node: Node, *numbers: int) -> None:
    directory = node.root / CHANNELS
    directory.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (directory / f"channel{number}").touch()
        (directory / f"channel{number}").chmod(0o666)


class Workload:
    """The test's interface: the process runs every call, and its CUDA errors are raised in the test."""

    def __init__(self, node: Node, channel: int | str | Path) -> None:
        path = node.root / CHANNELS / f"channel{channel}" if isinstance(channel, int) else channel
        self.process = subprocess.Popen(
            [*DIES_WITH_US, sys.executable, "-m", "tests.sandbox.softimex.workload"],
            env={**node.env, "IMEX_CHANNEL_FILE": str(path)},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, name: str, *arguments: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.end()}"
        reply = json.loads(line)
        if "code" in reply:
            raise CudaError(reply["code"], reply["reason"])
        return reply["result"]

    def export(self, size: int = 65536, content: str = "") -> str:
        """Allocate, write and export memory; returns the handle in hexadecimal."""
        return str(self.call("export", size, content))

    def import_handle(self, handle: str) -> None:
        self.call("import_handle", handle)

    def read(self, size: int) -> str:
        return str(self.call("read", size))

    def end(self) -> tuple[int, str]:
        """Kill the process if it runs; returns the exit code and stderr."""
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


class Commands:
    """The commands that the process accepts. They apply to the last buffer."""

    def __init__(self) -> None:
        self.channel = memory.open_channel()
        self.buffer: memory.Buffer

    def export(self, size: int, content: str) -> str:
        self.buffer = allocation = self.channel.allocate(size)
        allocation.write(0, content.encode())
        return allocation.export().hex()

    def import_handle(self, handle: str) -> None:
        self.buffer = self.channel.import_handle(bytes.fromhex(handle))

    def read(self, size: int) -> str:
        return self.buffer.read(0, size).decode()

    def write(self, content: str) -> None:
        self.buffer.write(0, content.encode())

    def open_view(self) -> None:
        self.memory_view = self.buffer.view()

    def read_view(self) -> str:
        return bytes(self.memory_view[:5]).decode()

    def extend_file(self) -> None:
        """A process can do this with the descriptor of memory that is gone."""
        os.truncate(self.buffer._descriptor, self.buffer.size)

    def free(self) -> None:
        assert isinstance(self.buffer, memory.Allocation)
        self.buffer.free()

    def release(self) -> None:
        assert isinstance(self.buffer, memory.Import)
        self.buffer.release()

    def allocate(self, size: int, gpu: int) -> None:
        self.buffer = self.channel.allocate(size, gpu)

    def number(self) -> int:
        return self.channel.number


def main() -> None:
    commands: Commands | None = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            commands = commands or Commands()
            reply = {"result": getattr(commands, name)(*arguments)}
        except CudaError as error:
            reply = {"code": error.code, "reason": error.reason}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
