"""The smallest DRA plugin there can be: gives every claim one CDI device and answers at once.

Its messages are encoded by hand, so that a test of the node depends on nothing but the node: every field here is
a number, a length and bytes.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

Handler = Callable[[bytes, grpc.ServicerContext], bytes]


class Plugin:
    def __init__(self, kubelet: Path, driver: str, *, pool: str, device: str, cdi: str) -> None:
        self._driver = driver
        self._prepared = field(1, field(2, pool) + field(3, device) + field(4, cdi))
        self._socket = kubelet / "plugins" / driver / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{driver}-reg.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        self.registered = threading.Event()

    def __enter__(self) -> Self:
        self._serve("pluginregistration.Registration", GetInfo=self._info, NotifyRegistrationStatus=self._notified)
        self._serve(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            NodePrepareResources=lambda request, _: answers(request, self._prepared),
            NodeUnprepareResources=lambda request, _: answers(request, b""),
        )
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._socket, self._registration):
            self._server.add_insecure_port(f"unix:{path}")
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(grace=None).wait()

    def _serve(self, service: str, **methods: Handler) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        words = ("DRAPlugin", self._driver, str(self._socket), "v1.DRAPlugin")
        return b"".join(field(number, word) for number, word in enumerate(words, start=1))

    def _notified(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.registered.set()
        return b""


def answers(request: bytes, answer: bytes) -> bytes:
    """The same answer for every claim of a request, by the claim's UID."""
    uids = [dict(fields(claim))[2] for _, claim in fields(request)]
    return b"".join(field(1, field(1, uid) + field(2, answer)) for uid in uids)


def field(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2]) + varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    while message:
        number, length = message[0] >> 3, message[1]
        assert length < 0x80, "no name of a test is that long"
        yield number, message[2 : 2 + length]
        message = message[2 + length :]


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)
