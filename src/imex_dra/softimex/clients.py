"""The memory library's door to the daemon: `run/client/imex.sock`.

    {"call": "open"} + descriptor of the channel        {"channel": 7, "slot": 0, "gpus": 4}
    {"call": "allocate", "gpu": 0, "size": n}           {"allocation": 1, "length": n} + descriptor
    {"call": "export", "allocation": 1}                 {"handle": "…"}
    {"call": "free", "allocation": 1}                   {}
    {"call": "import", "handle": "…"}                   {"import": 1, "length": n} + descriptor
    {"call": "release", "import": 1}                    {}
    {"call": "memory"}                                  {"free": bytes, "total": bytes}

One request, one reply; an error is {"error": {"code", "name", "why"}}. Between replies the daemon may say
{"lost": 1, "why": …} of an import. A process opens one channel in the life of its connection, and everything it
holds ends with the connection.
"""

import os
import socket
from collections.abc import Callable

from imex_dra.softimex import channels
from imex_dra.softimex.errors import CudaError, Malformed
from imex_dra.softimex.exchange import MOST_BYTES, Exchange, Grant
from imex_dra.softimex.frames import Message, number, text
from imex_dra.softimex.listener import Listener
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.noderoot import NodeRoot
from imex_dra.softimex.sockets import listen_unix
from imex_dra.softimex.stream import Stream

MOST_CLIENTS = 512
TICK_SECONDS = 0.5
NO_CHANNEL = -1


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
    def introduced(self) -> bool:
        return self.channel != NO_CHANNEL

    def received(self, message: Message, descriptor: int | None) -> None:
        if self._importing:
            raise Malformed("a second request before the first was answered")
        call = message.get("call")
        try:
            if call == "open":
                self._open_channel(descriptor)
            elif isinstance(call, str) and call in self._calls:
                self._require_channel()
                self._calls[call](message)
            else:
                raise Malformed("a call that is none of ours")
        except CudaError as error:
            self._refuse(error)

    def closed(self, why: str) -> None:
        self._exchange.gone(self)
        self._service.clients.dismissed(self)

    def tick(self, now: float) -> None:
        if self.overdue(now):
            self.close("it keeps us waiting")

    def tell_lost(self, number: int, why: str) -> None:
        self.send({"lost": number, "why": why})

    def _open_channel(self, descriptor: int | None) -> None:
        if self.introduced:
            raise CudaError(CudaError.NOT_PERMITTED, "a process may open one channel only, and has opened it")
        self.channel = channels.prove(descriptor, self._service.root.channels)
        gpus = self._exchange.hardware().gpus
        self.send({"channel": self.channel, "slot": self._service.slot, "gpus": gpus})

    def _require_channel(self) -> None:
        if not self.introduced:
            raise CudaError(CudaError.NOT_PERMITTED, "this process has opened no IMEX channel")

    def _allocate(self, message: Message) -> None:
        gpu, size = number(message, "gpu", 0, 255), number(message, "size", 1, MOST_BYTES)
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
            raise CudaError(CudaError.INVALID_HANDLE, "a handle is written in hexadecimal here") from None
        self._importing = True
        try:
            self._exchange.attach(self, data, self._imported)
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
        free, total = self._exchange.free_bytes()
        self.send({"free": free, "total": total})

    def _refuse(self, error: CudaError) -> None:
        self.send({"error": {"code": error.code, "name": error.name, "why": error.why}})


class ClientService:
    def __init__(self, loop: Loop, root: NodeRoot, exchange: Exchange, slot: int) -> None:
        self.loop, self.root, self.exchange, self.slot = loop, root, exchange, slot
        self.clients = Listener(loop, lambda sock, source: Client(self, sock), MOST_CLIENTS)

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.root.client_socket), mode=0o755, exist_ok=True)
        self.clients.listen(listen_unix(self.root.client_socket))
        self.loop.every(TICK_SECONDS, self.clients.tick)
