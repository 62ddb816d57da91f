"""The daemon's service for the memory library, on `run/client/imex.sock`.

    {"call": "open"} + descriptor of the channel        {"channel": 7, "index": 0, "gpus": 4}
    {"call": "allocate", "gpu": 0, "size": n}           {"allocation": 1, "length": n} + descriptor
    {"call": "export", "allocation": 1}                 {"handle": "…"}
    {"call": "free", "allocation": 1}                   {}
    {"call": "import", "handle": "…"}                   {"import": 1, "length": n} + descriptor
    {"call": "release", "import": 1}                    {}
    {"call": "memory"}                                  {"free": bytes, "total": bytes}

Each request gets one reply. An error is {"error": {"code", "name", "reason"}}. Between replies the daemon may send
{"lost": 1, "reason": …} for an import. A connection opens one channel, and everything that the process owns ends
with the connection.
"""

import fcntl
import os
import re
import socket
from collections.abc import Callable

from imex_sandbox.softimex.errors import CudaError, Malformed
from imex_sandbox.softimex.exchange import MAX_BYTES, Exchange, Grant
from imex_sandbox.softimex.frames import Message, number, text
from imex_sandbox.softimex.loop import Loop
from imex_sandbox.softimex.noderoot import NodeRoot
from imex_sandbox.softimex.sockets import Listener, listen_unix
from imex_sandbox.softimex.stream import Stream

MAX_CLIENTS = 512
TICK_SECONDS = 0.5
NO_CHANNEL = -1
_CHANNEL_NAME = re.compile(r"channel(0|[1-9][0-9]{0,6})")


class Client(Stream):
    def __init__(self, service: "ClientService", sock: socket.socket) -> None:
        super().__init__(service.loop, sock)
        self.channel = NO_CHANNEL
        self.allocations: dict[int, str] = {}
        self.imports: set[int] = set()
        self._service = service
        self._exchange = service.exchange
        self._importing = False
        self._calls: dict[str, Callable[[Message], None]] = {
            "allocate": self._allocate,
            "export": self._export,
            "free": self._free,
            "import": self._import,
            "release": self._release,
            "memory": self._memory,
        }

    @property
    def established(self) -> bool:
        return self.channel != NO_CHANNEL

    def on_message(self, message: Message, descriptor: int | None) -> None:
        if self._importing:
            raise Malformed("a second request was sent before the reply to the first")
        call = message.get("call")
        try:
            if call == "open":
                self._open_channel(descriptor)
            elif isinstance(call, str) and call in self._calls:
                self._require_channel()
                self._calls[call](message)
            else:
                raise Malformed("unknown call")
        except CudaError as error:
            self._refuse(error)

    def on_close(self, reason: str) -> None:
        self._exchange.owner_gone(self)
        self._service.clients.remove(self)

    def tick(self, now: float) -> None:
        if self.timed_out(now):
            self.close("no complete request received in time")

    def notify_lost(self, number: int, reason: str) -> None:
        self.send({"lost": number, "reason": reason})

    def _open_channel(self, descriptor: int | None) -> None:
        if self.established:
            raise CudaError(
                CudaError.NOT_PERMITTED, "this process has already opened a channel: only one is allowed"
            )
        self.channel = verify_channel(descriptor, self._service.root.channels)
        gpus = self._exchange.hardware().gpus
        self.send({"channel": self.channel, "index": self._service.index, "gpus": gpus})

    def _require_channel(self) -> None:
        if not self.established:
            raise CudaError(CudaError.NOT_PERMITTED, "this process has not opened an IMEX channel")

    def _allocate(self, message: Message) -> None:
        gpu, size = number(message, "gpu", 0, 255), number(message, "size", 1, MAX_BYTES)
        grant = self._exchange.allocate(self, gpu, size)
        self.send({"allocation": grant.number, "length": grant.length}, grant.descriptor)

    def _export(self, message: Message) -> None:
        self.send({"handle": self._exchange.export(self, number(message, "allocation", 1, 2**62)).hex()})

    def _free(self, message: Message) -> None:
        self._exchange.free(self, number(message, "allocation", 1, 2**62))
        self.send({})

    def _import(self, message: Message) -> None:
        try:
            data = bytes.fromhex(text(message, "handle"))
        except ValueError:
            raise CudaError(CudaError.INVALID_HANDLE, "the handle is not hexadecimal") from None
        # Set before the call, which may invoke `_imported` at once or after a response from another node.
        self._importing = True
        try:
            self._exchange.import_handle(self, data, self._imported)
        except CudaError:
            self._importing = False
            raise

    def _imported(self, result: Grant | CudaError) -> None:
        self._importing = False
        if isinstance(result, CudaError):
            self._refuse(result)
        else:
            self.send({"import": result.number, "length": result.length}, result.descriptor)

    def _release(self, message: Message) -> None:
        self._exchange.release(self, number(message, "import", 1, 2**62))
        self.send({})

    def _memory(self, message: Message) -> None:
        free, total = self._exchange.memory_info()
        self.send({"free": free, "total": total})

    def _refuse(self, error: CudaError) -> None:
        self.send({"error": {"code": error.code, "name": error.name, "reason": error.reason}})


class ClientService:
    def __init__(self, loop: Loop, root: NodeRoot, exchange: Exchange, index: int) -> None:
        self.loop, self.root, self.exchange, self.index = loop, root, exchange, index
        self.clients = Listener(loop, lambda sock, source: Client(self, sock), MAX_CLIENTS)

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.root.client_socket), mode=0o755, exist_ok=True)
        self.clients.listen(listen_unix(self.root.client_socket))
        self.loop.every(TICK_SECONDS, self.clients.tick)


def verify_channel(descriptor: int | None, directory: str) -> int:
    """The number of the channel that a descriptor refers to.

    The process proves its channel with a descriptor of a channel file of this node; a number that it sends is
    never used. The descriptor must be open for reading and writing: one opened with O_PATH or read-only shows that
    the process can see the file, not that it was given the channel.
    """
    if descriptor is None:
        raise _not_permitted("this process passed no channel: does its container reference the claim?")
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE != os.O_RDWR:
        raise _not_permitted("the channel must be opened for reading and writing")
    number = find_channel(os.fstat(descriptor), directory)
    if number is None:
        raise _not_permitted("the file that this process passed is not a channel of this node")
    return number


def find_channel(passed: os.stat_result, directory: str) -> int | None:
    try:
        with os.scandir(directory) as entries:
            candidates = [entry for entry in entries if entry.inode() == passed.st_ino]
            return next((int(entry.name[7:]) for entry in candidates if _is_channel(entry, passed)), None)
    except OSError:
        return None


def _is_channel(entry: os.DirEntry[str], passed: os.stat_result) -> bool:
    own = entry.stat(follow_symlinks=False)
    same = (own.st_dev, own.st_ino) == (passed.st_dev, passed.st_ino)
    return same and _CHANNEL_NAME.fullmatch(entry.name) is not None


def _not_permitted(reason: str) -> CudaError:
    return CudaError(CudaError.NOT_PERMITTED, reason)
