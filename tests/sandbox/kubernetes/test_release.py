"""Official programs from a mirror, which is an HTTP server of the test on loopback."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes import binaries, build, release, versions
from tests.sandbox.kubernetes.fakego import FakeGo


class Mirror:
    """Serves `files` by their paths."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                content = mirror.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, name: str, *, version: str, reports: str = "", checksum: str = "") -> None:
        program = f"#!/bin/sh\necho Kubernetes {reports or version}\n".encode()
        path = f"/release/{version}/bin/linux/{release._architecture()}/{name}"
        self.files[path] = program
        self.files[f"{path}.sha256"] = (checksum or hashlib.sha256(program).hexdigest()).encode()


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    fake = FakeGo(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def mirror(go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """The one that is configured. The selected version is not that of the kubectl in the environment."""
    mirror = Mirror()
    monkeypatch.setenv("IMEX_KUBERNETES_MIRROR", f"{mirror.url}/")
    monkeypatch.setenv("IMEX_KUBERNETES", "1.34")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield mirror
    mirror.stop()


def test_programs_of_the_release_come_from_the_mirror_and_the_others_are_built(go: FakeGo, mirror: Mirror) -> None:
    for name in versions.RELEASED:
        mirror.add(name, version=versions.kubernetes())
    build.build()
    assert binaries.missing(binaries.BUILT) == []
    built = [package.rpartition("/")[2] for package in go.built()]
    assert built == ["v3", "mpi-operator", *binaries.RUNTIME, "helm"]
    for name in versions.RELEASED:
        assert versions.version_of(binaries.find(name)) == versions.kubernetes()


def test_a_program_that_exists_is_not_downloaded(mirror: Mirror) -> None:
    for name in ("kubelet", "kubectl"):
        mirror.add(name, version=versions.kubernetes())
    build.build(["kubelet"])
    mirror.asked.clear()
    build.build(["kubelet", "kubectl"])
    assert {path.rpartition("/")[2] for path in mirror.asked} == {"kubectl", "kubectl.sha256"}


def failed_download(program: str = "kubelet") -> str:
    with pytest.raises(Misconfigured) as error:
        build.build([program])
    assert binaries.missing([program]) == [program]
    assert [path for path in binaries.cache_root().rglob("*kube*") if path.is_file()] == []
    return str(error.value)


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(go: FakeGo, mirror: Mirror) -> None:
    mirror.add("kubelet", version=versions.kubernetes(), checksum="0" * 64)
    message = failed_download()
    assert "/kubelet has the SHA-256 checksum " in message
    assert f"but the mirror's kubelet.sha256 says {'0' * 64}: try again" in message
    assert go.built() == []


def test_a_file_without_a_checksum_is_an_error(mirror: Mirror) -> None:
    mirror.add("kubelet", version=versions.kubernetes(), checksum="<html>")
    assert "kubelet.sha256 contains no SHA-256 checksum" in failed_download()


def test_a_program_of_another_version_is_an_error(mirror: Mirror) -> None:
    mirror.add("kubelet", version=versions.kubernetes(), reports="v1.34.1")
    assert f"/kubelet reports v1.34.1 instead of {versions.kubernetes()}" in failed_download()


def test_a_mirror_without_the_version_is_an_error(mirror: Mirror) -> None:
    mirror.add("kubelet", version="v1.34.1")
    message = failed_download()
    assert f"the mirror has no {mirror.url}/release/{versions.kubernetes()}/bin/linux/" in message
    assert "(HTTP 404)" in message


def test_a_mirror_that_does_not_answer_is_an_error(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = Mirror()
    unused.stop()
    monkeypatch.setenv("IMEX_KUBERNETES_MIRROR", unused.url)
    message = failed_download()
    assert f"the mirror does not answer for {unused.url}/release/" in message
    assert "Connection refused. Try again, or unset IMEX_KUBERNETES_MIRROR to build from source" in message


@pytest.mark.usefixtures("mirror")
def test_a_mirror_that_accepts_connections_but_is_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("IMEX_KUBERNETES_MIRROR", url)
        assert f"the mirror does not answer for {url}/release/" in failed_download()


def test_a_download_that_ends_early_is_an_error(mirror: Mirror) -> None:
    mirror.add("kubelet", version=versions.kubernetes())
    (path,) = [path for path in mirror.files if path.endswith("kubelet")]
    mirror.files[path] = mirror.files[path][:-1]
    assert "/kubelet has the SHA-256 checksum " in failed_download()


def test_a_mirror_is_a_url(monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> None:
    monkeypatch.setenv("IMEX_KUBERNETES_MIRROR", "/srv/kubernetes")
    assert "IMEX_KUBERNETES_MIRROR is /srv/kubernetes: set it to the URL of a mirror" in failed_download()
