"""What the demo's pods run in their containers: export memory, or import it from another node.

    python -m imex_sandbox.demo.sharedmemory export            # print a handle; keep the memory until SIGTERM
    python -m imex_sandbox.demo.sharedmemory import HANDLE     # print the content, or the CUDA error

The output is one line of JSON, a `MemoryResult`.
"""

import signal
import sys

import msgspec
from msgspec import Struct

from imex_sandbox.softimex import memory

CONTENT = b"written by a process on another node"
_SIZE = 65536


class MemoryResult(Struct, frozen=True, omit_defaults=True):
    handle: str = ""
    content: str = ""
    code: int = 0
    name: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.why}" if self.code else f"read {self.content!r}"


def export_memory() -> None:
    with memory.open_channel() as channel:
        exported = channel.allocate(_SIZE)
        exported.write(0, CONTENT)
        _print(MemoryResult(handle=exported.export().hex()))
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def import_memory(handle: str) -> None:
    with memory.open_channel() as channel:
        imported = channel.import_handle(bytes.fromhex(handle))
        _print(MemoryResult(content=imported.read(0, len(CONTENT)).decode()))


def _print(result: MemoryResult) -> None:
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        if arguments == ["export"]:
            export_memory()
        else:
            import_memory(arguments[1])
    except memory.CudaError as error:
        _print(MemoryResult(code=error.code, name=error.name, why=error.reason))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
