"""`imex webhook` as a process: watches, the HTTPS server, and its certificate."""

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import structlog

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.nvlinkpartition import NVLINK_PARTITIONS, NVLinkPartition
from imex_dra.base.httpserver import HttpServer
from imex_dra.base.telemetry import Telemetry
from imex_dra.kube.client import Client
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.webhook.server import Reviewer

log = structlog.get_logger()

PATH = "/validate"
PLACE = "/place"
PLACE_ALL = "/place-all"
"""For pods of namespaces with the label."""
_MAX_BODY = 8 * 1024 * 1024
"""Bytes. An object has at most 1.5 MB in etcd; a review has it as JSON, which can be longer."""
_RELOAD_PERIOD = 10.0


class Certificate:
    """The files of a Secret of type kubernetes.io/tls. The kubelet replaces them when the Secret changes."""

    def __init__(self, directory: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.problem = "the certificate has not been read yet"
        """Empty if one is in use."""
        self.notice = ""
        """Why the former certificate is still in use; empty if it is that of the files."""
        self._files = directory / "tls.crt", directory / "tls.key"
        self._content: tuple[bytes, bytes] | None = None
        self.loaded = asyncio.Event()

    def reload(self) -> None:
        """New connections use the new certificate; one that cannot be used changes nothing."""
        try:
            certificate, key = (file.read_bytes() for file in self._files)
            if (certificate, key) != self._content:
                self._load()
                self._content = certificate, key
                log.info("certificate loaded")
        except (OSError, ssl.SSLError) as error:
            # While the kubelet replaces the files, they may belong to different certificates.
            log.warning("the certificate cannot be used", error=str(error), retry_in=_RELOAD_PERIOD)
            cause = f"tls.crt and tls.key cannot be used: {error}"
            if self._content is None:
                self.problem = cause
            else:
                self.notice = f"{cause}; the former certificate is still in use"
        else:
            self.problem = self.notice = ""

    def _load(self) -> None:
        # A context in which loading failed has a certificate without its key, and refuses every connection.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
        # The files may change in between. Then nothing is in use, and the next reload loads them again.
        self._content = None
        self.context.load_cert_chain(*self._files)

    async def follow(self, period: float) -> NoReturn:
        while True:
            self.reload()
            if not self.problem:
                self.loaded.set()
            await asyncio.sleep(period)


async def run(
    client: Client,
    *,
    host: str | None,
    port: int,
    certificates: Path,
    telemetry: Telemetry | None = None,
    reload_period: float = _RELOAD_PERIOD,
    server: HttpServer | None = None,
) -> None:
    """Until cancelled."""
    telemetry, certificate = telemetry or Telemetry(), Certificate(certificates)
    domains: Store[ComputeDomain] = Store(
        namespace=lambda domain: [domain.metadata.namespace], uid=lambda domain: [domain.metadata.uid]
    )
    partitions: Store[NVLinkPartition] = Store()
    reviewer = Reviewer(client, domains, partitions, telemetry.metrics)
    reflectors = Reflector(client, COMPUTE_DOMAINS, domains), Reflector(client, NVLINK_PARTITIONS, partitions)

    async def certificate_problem() -> str:
        return certificate.problem

    async def certificate_notice() -> str:
        return certificate.notice

    async def caches_problem() -> str:
        return "" if all(reflector.synced.is_set() for reflector in reflectors) else "objects are not listed yet"

    server = server or HttpServer({}, max_body=_MAX_BODY)
    server.routes = {
        ("POST", PATH): reviewer.validating(),
        ("POST", PLACE): reviewer.placing(by_namespace=False),
        ("POST", PLACE_ALL): reviewer.placing(by_namespace=True),
    }
    with (
        telemetry.ready("certificate", certificate_problem),
        telemetry.notice("certificate files", certificate_notice),
        telemetry.ready("caches", caches_problem),
    ):
        async with asyncio.TaskGroup() as group:
            group.create_task(certificate.follow(reload_period))
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            await certificate.loaded.wait()
            group.create_task(server.run(host, port, tls=certificate.context))
