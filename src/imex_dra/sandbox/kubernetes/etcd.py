"""etcd for one API server, reachable only through a socket file in its directory.

No port is taken, and no other user of the machine can read or write the cluster's data behind the API server.
The socket's name is relative: whoever dials it runs in the same directory, so the directory may be deep
though a socket's path holds 107 bytes only. Nothing is synced to disk: the data is as mortal as the machine.
"""

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

from imex_dra.base.errors import Unavailable
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.process import Process

_CLIENT = "etcd:0"
_PEER = "peer:0"


class Etcd:
    url = f"unix://{_CLIENT}"

    def __init__(self, directory: Path, logs: Path) -> None:
        self._directory = directory
        peer = f"unix://{_PEER}"
        argv = [
            str(find("etcd")),
            "--data-dir=etcd",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self.process = Process("etcd", argv, log=logs / "etcd.log", cwd=directory)

    def start(self) -> None:
        self.process.start()

    def stop(self) -> None:
        self.process.stop()

    def compact(self) -> int:
        """Forget every revision before the present one, which is returned."""
        revision = int(self._call("maintenance/status")["header"]["revision"])
        self._call("kv/compaction", revision=revision, physical=True)
        return revision

    def _call(self, method: str, **arguments: Any) -> Any:
        connection = _UnixConnection(self._directory / _CLIENT)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(arguments))
            response = connection.getresponse()
            answer = json.load(response)
        except OSError as error:
            raise Unavailable(f"etcd in {self._directory} does not answer: {error}. Is it running?") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise Unavailable(f"etcd refused {method}: {answer}")
        return answer


class _UnixConnection(http.client.HTTPConnection):
    """The directory is opened first and named by its descriptor, whatever the length of its path."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)
