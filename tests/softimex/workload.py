"""A process that uses the memory library as it is told, line by line, and the test's end of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from imex_dra.softimex import memory
from imex_dra.softimex.memory import CudaError
from tests.softimex.rack import DIES_WITH_US, Node

CHANNELS = "dev/nvidia-caps-imex-channels"


def give_channels(node: Node, *numbers: int) -> None:
    directory = node.root / CHANNELS
    directory.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (directory / f"channel{number}").touch()
        (directory / f"channel{number}").chmod(0o666)


class Workload:
    """The test's end. Every call is made by the process; its CUDA errors are raised here."""

    def __init__(self, node: Node, channel: int | str | Path) -> None:
        path = node.root / CHANNELS / f"channel{channel}" if isinstance(channel, int) else channel
        self.process = subprocess.Popen(
            [*DIES_WITH_US, sys.executable, "-m", "tests.softimex.workload"],
            env={**node.env, "IMEX_CHANNEL_FILE": str(path)},
            cwd=Path(__file__).parents[2],
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
            raise CudaError(reply["code"], reply["why"])
        return reply["result"]

    def export(self, size: int = 65536, content: str = "") -> str:
        """Allocate, write, export: a handle in hexadecimal."""
        return str(self.call("export", size, content))

    def attach(self, handle: str) -> None:
        self.call("attach", handle)

    def read(self, size: int) -> str:
        return str(self.call("read", size))

    def end(self) -> tuple[int, str]:
        """Exit code and last words."""
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


class Hands:
    """What the process can be told. It keeps the last buffer."""

    def __init__(self) -> None:
        self.channel = memory.open_channel()
        self.buffer: memory.Buffer

    def export(self, size: int, content: str) -> str:
        self.buffer = allocation = self.channel.allocate(size)
        allocation.write(0, content.encode())
        return allocation.export().hex()

    def attach(self, handle: str) -> None:
        self.buffer = self.channel.attach(bytes.fromhex(handle))

    def read(self, size: int) -> str:
        return self.buffer.read(0, size).decode()

    def write(self, content: str) -> None:
        self.buffer.write(0, content.encode())

    def hold_view(self) -> None:
        self.raw = self.buffer.view()

    def touch_view(self) -> str:
        return bytes(self.raw[:5]).decode()

    def lengthen(self) -> None:
        """What a process can do to its descriptor of memory that is gone."""
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
    hands: Hands | None = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            hands = hands or Hands()
            reply = {"result": getattr(hands, name)(*arguments)}
        except CudaError as error:
            reply = {"code": error.code, "why": error.why}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
