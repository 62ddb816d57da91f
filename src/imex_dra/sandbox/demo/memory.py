"""What the demo's pods do with memory, inside their containers.

    python -m imex_dra.sandbox.demo.memory export            # a handle; the memory lives until the process ends
    python -m imex_dra.sandbox.demo.memory import HANDLE     # what is written there, or who refused and why

One line of JSON, a `Word`, is all they say.
"""

import signal
import sys

import msgspec
from msgspec import Struct

from imex_dra.softimex import memory

CONTENT = b"written by a process on another node"
_SIZE = 65536


class Word(Struct, frozen=True, omit_defaults=True):
    handle: str = ""
    content: str = ""
    code: int = 0
    name: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.why}" if self.code else f"read {self.content!r}"


def export() -> None:
    with memory.open_channel() as channel:
        mine = channel.allocate(_SIZE)
        mine.write(0, CONTENT)
        _say(Word(handle=mine.export().hex()))
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def attach(handle: str) -> None:
    with memory.open_channel() as channel:
        theirs = channel.attach(bytes.fromhex(handle))
        _say(Word(content=theirs.read(0, len(CONTENT)).decode()))


def _say(word: Word) -> None:
    sys.stdout.write(msgspec.json.encode(word).decode() + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        if arguments == ["export"]:
            export()
        else:
            attach(arguments[1])
    except memory.CudaError as error:
        _say(Word(code=error.code, name=error.name, why=error.why))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
