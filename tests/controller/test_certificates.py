"""The certificate of IMEX daemons: issued, renewed, and accepted by the daemons that share it."""

import ssl
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta, Key
from imex_dra.api.names import (
    AUTHORITY_SECRET,
    DAEMON_NAME,
    DAEMON_SECRET,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    NOT_AFTER_ANNOTATION,
)
from imex_dra.api.views import NAMESPACES, SECRETS, Namespace, Secret
from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ImexError
from imex_dra.controller.certificates import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    CertificateKeeper,
    CertificatePlan,
    plan_certificates,
)
from imex_dra.controller.issuing import KeyPair, Request, issue
from tests.controller.cluster import Cluster

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
OURS = {MANAGED_BY_LABEL: MANAGED_BY}


DATA = dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "LS0t")


def secret(days: float | None, labels: dict[str, str] = OURS) -> Secret:
    until = {} if days is None else {NOT_AFTER_ANNOTATION: rfc3339(NOW + timedelta(days=days))}
    return Secret(AnnotatedMeta("x", "y", annotations=until, labels=labels), data=DATA)


def edited(key: str, value: str) -> Secret:
    return structs.replace(secret(365), data={**DATA, key: value})


def without(key: str) -> Secret:
    found = secret(365)
    return structs.replace(found, data={name: value for name, value in found.data.items() if name != key})


@pytest.mark.parametrize(
    ("authority", "certificate", "expected"),
    [
        (None, None, (True, True)),
        (secret(3650), None, (False, True)),
        (secret(3650), secret(365), (False, False)),
        (secret(3650), secret(122), (False, False)),
        (secret(3650), secret(121), (False, True)),
        (secret(3650), secret(-1), (False, True)),
        (secret(3650), secret(None), (False, True)),
        (secret(3650), without("ca.crt"), (False, True)),
        (secret(3650), without("tls.crt"), (False, True)),
        (secret(3650), without("tls.key"), (False, True)),
        (secret(3650), edited("ca.crt", ""), (False, True)),
        (secret(3650), edited("ca.crt", "no base64!"), (False, True)),
        (None, secret(365), (True, True)),
        (secret(300), secret(365), (True, True)),
        (secret(None), None, (True, True)),
        (secret(None, {}), None, (False, True)),
        (secret(-1, {}), None, (False, True)),
        (None, secret(None, {}), (False, False)),
        (secret(3650), secret(-1, {}), (False, False)),
    ],
    ids=[
        "nothing",
        "no certificate",
        "fresh",
        "not due",
        "due",
        "expired",
        "unknown end",
        "no authority in it",
        "no certificate in it",
        "no key in it",
        "an empty authority in it",
        "an unreadable authority in it",
        "lost authority",
        "old authority",
        "an authority of unknown end",
        "an administrator's authority",
        "an administrator's authority with our annotation",
        "cert-manager's certificate",
        "cert-manager's expired certificate",
    ],
)
def test_what_is_issued(authority: Secret | None, certificate: Secret | None, expected: tuple[bool, bool]) -> None:
    assert plan_certificates(authority, certificate, NOW) == CertificatePlan(*expected)


async def test_daemons_with_an_old_and_a_new_certificate_accept_each_other(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = await issue(Request(now, now + AUTHORITY_LIFE))
    old = await issue(Request(now, now + CERTIFICATE_LIFE, authority))
    new = await issue(Request(now, now + CERTIFICATE_LIFE, authority))
    assert old != new
    assert handshake(tmp_path, server=old, client=new, trusted=authority) == DAEMON_NAME
    assert handshake(tmp_path, server=new, client=old, trusted=authority) == DAEMON_NAME


async def test_a_process_with_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ours, theirs = [await issue(Request(now, now + AUTHORITY_LIFE)) for _ in range(2)]
    daemon = await issue(Request(now, now + CERTIFICATE_LIFE, ours))
    intruder = await issue(Request(now, now + CERTIFICATE_LIFE, theirs))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server=daemon, client=intruder, trusted=ours)


async def test_an_unusable_authority_is_named() -> None:
    now = datetime.now(UTC)
    with pytest.raises(ImexError, match="no certificate can be issued: "):
        await issue(Request(now, now + CERTIFICATE_LIFE, KeyPair("no key", "no certificate")))


def handshake(directory: Path, *, server: KeyPair, client: KeyPair, trusted: KeyPair) -> str:
    """Returns the name in the server's certificate."""
    contexts = []
    for pair, protocol in ((server, ssl.PROTOCOL_TLS_SERVER), (client, ssl.PROTOCOL_TLS_CLIENT)):
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        for name, content in (("key", pair.key), ("crt", pair.certificate), ("ca", trusted.certificate)):
            (directory / name).write_text(content)
        context.load_cert_chain(directory / "crt", directory / "key")
        context.load_verify_locations(directory / "ca")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    connecting = contexts[1].wrap_bio(to_client, to_server, server_hostname=DAEMON_NAME)
    pending = [connecting, accepting]
    for turn in range(20):
        side = pending[turn % len(pending)] if pending else None
        if side is None:
            break
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        pending.remove(side)
    assert not pending, "the handshake does not end"
    certificate = connecting.getpeercert()
    assert certificate
    return str(certificate["subjectAltName"][0][1])


class At(Clock):
    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now


@pytest.mark.kube
async def test_the_secrets_are_created_and_renewed_in_time_and_a_foreign_one_is_left_alone(
    cluster: Cluster,
) -> None:
    client, namespace = cluster.client, cluster.namespace

    async def read(name: str) -> Secret:
        return await client.get(SECRETS, Key(namespace, name))

    await CertificateKeeper(client, namespace, At(NOW)).keep()
    authority, first = await read(AUTHORITY_SECRET), await read(DAEMON_SECRET)
    assert first.type == "kubernetes.io/tls"
    assert first.data["ca.crt"] == authority.data["tls.crt"]
    assert b64decode(first.data["tls.key"]).startswith(b"-----BEGIN PRIVATE KEY")
    await CertificateKeeper(client, namespace, At(NOW + timedelta(days=200))).keep()
    assert await read(DAEMON_SECRET) == first, "renewed too early"
    await CertificateKeeper(client, namespace, At(NOW + timedelta(days=300))).keep()
    renewed = await read(DAEMON_SECRET)
    assert renewed.data["tls.crt"] != first.data["tls.crt"]
    assert renewed.data["ca.crt"] == first.data["ca.crt"]
    assert renewed.metadata.annotations[NOT_AFTER_ANNOTATION] == rfc3339(NOW + timedelta(days=665))
    assert await read(AUTHORITY_SECRET) == authority

    other = Key(f"{namespace}-other", DAEMON_SECRET)
    await client.create(NAMESPACES, Namespace(AnnotatedMeta(other.namespace)))
    foreign = structs.replace(renewed, metadata=AnnotatedMeta(other.name, other.namespace))
    foreign = await client.create(SECRETS, foreign)
    await CertificateKeeper(client, other.namespace, At(NOW + timedelta(days=9999))).keep()
    assert await client.get(SECRETS, other) == foreign
