"""Keeps the certificates of the IMEX daemons and of the webhook valid: Secrets in the controller's namespace.

One holds the certificate authority with its key, and only the controller reads it. Another one, which daemon pods
mount, holds a certificate that all daemons share. It is renewed when two thirds of its life are over; daemons with
the old and the new certificate trust each other, because the authority is the same. That of the webhook is issued
and renewed in the same way, and the API server learns the authority from the configurations of the webhook.

A Secret without the label `app.kubernetes.io/managed-by: imex-dra` belongs to somebody else (cert-manager, an
administrator), and is left alone.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn

import structlog
from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta, Key, Resource
from imex_dra.api.names import (
    AUTHORITY_SECRET,
    DAEMON_NAME,
    DAEMON_SECRET,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    NOT_AFTER_ANNOTATION,
    WEBHOOK,
    WEBHOOK_SECRET,
)
from imex_dra.api.views import SECRETS, WEBHOOK_CONFIGURATIONS, Secret, WebhookConfiguration
from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ImexError, NotFound
from imex_dra.controller.issuing import KeyPair, Request, issue
from imex_dra.kube.account import own_account
from imex_dra.kube.backoff import jittered
from imex_dra.kube.client import JSON_PATCH, Client
from imex_dra.kube.patch import patch_changes

log = structlog.get_logger()

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)

_PERIOD = 300.0
"""Seconds between two looks at the Secrets."""


class CertificatePlan(NamedTuple):
    new_authority: bool = False
    new_certificate: bool = False


def plan_certificates(authority: Secret | None, certificate: Secret | None, now: datetime) -> CertificatePlan:
    if certificate is not None and not _is_ours(certificate):
        return CertificatePlan()
    # A certificate of a lost authority cannot be renewed: daemons that start later would not trust the others.
    if authority is None or not _is_valid(authority, now):
        return CertificatePlan(new_authority=True, new_certificate=True)
    return CertificatePlan(new_certificate=certificate is None or _is_due(certificate, now))


def _is_ours(secret: Secret) -> bool:
    return secret.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def _not_after(secret: Secret) -> datetime | None:
    try:
        return datetime.fromisoformat(secret.metadata.annotations[NOT_AFTER_ANNOTATION]).astimezone(UTC)
    except (KeyError, ValueError):
        return None


def _is_valid(authority: Secret, now: datetime) -> bool:
    """An authority must outlive the certificates that it signs. That of an administrator is used as it is."""
    until = _not_after(authority)
    return not _is_ours(authority) or (until is not None and until - now > CERTIFICATE_LIFE)


def _is_due(certificate: Secret, now: datetime) -> bool:
    until = _not_after(certificate)
    return until is None or until - now < CERTIFICATE_LIFE / 3 or not _is_usable(certificate)


def _is_usable(certificate: Secret) -> bool:
    """Somebody may have edited it."""
    try:
        return all(b64decode(certificate.data[name], validate=True) for name in ("tls.crt", "tls.key", "ca.crt"))
    except (KeyError, ValueError):
        return False


class Leaf(NamedTuple):
    """A certificate to keep."""

    secret: str
    name: str
    """DNS name in it."""
    configuration: str = ""
    """Webhook configurations in which the API server finds the authority."""


DAEMONS = Leaf(DAEMON_SECRET, DAEMON_NAME)


def webhook_leaf(namespace: str) -> Leaf:
    return Leaf(WEBHOOK_SECRET, f"{WEBHOOK}.{namespace}.svc", WEBHOOK)


class CertificateKeeper:
    def __init__(self, client: Client, namespace: str, clock: Clock, leaves: Sequence[Leaf] = (DAEMONS,)) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._leaves = leaves

    async def run(self) -> NoReturn:
        while True:
            try:
                await self.keep()
            except ImexError as error:
                log.warning("cannot keep the certificates valid", error=str(error))
            await asyncio.sleep(jittered(_PERIOD))

    async def keep(self) -> None:
        for leaf in self._leaves:
            await self._keep(leaf)

    async def _keep(self, leaf: Leaf) -> None:
        authority, certificate = await self._read(AUTHORITY_SECRET), await self._read(leaf.secret)
        now = self._clock.now()
        plan = plan_certificates(authority, certificate, now)
        if plan.new_authority:
            until = now + AUTHORITY_LIFE
            pair = await issue(Request(now, until))
            # Written first: a certificate whose authority is lost could not be renewed.
            authority = await self._write(AUTHORITY_SECRET, authority, _content(pair), until)
        if plan.new_certificate and authority is not None:
            until = now + CERTIFICATE_LIFE
            signer = _pair(authority)
            pair = await issue(Request(now, until, signer, leaf.name))
            data = {**_content(pair), "ca.crt": _encoded(signer.certificate)}
            certificate = await self._write(leaf.secret, certificate, data, until)
            log.info("issued a certificate", secret=leaf.secret, until=rfc3339(until))
        if leaf.configuration and certificate is not None and _is_ours(certificate):
            for resource in WEBHOOK_CONFIGURATIONS:
                await self._publish(resource, leaf.configuration, certificate.data["ca.crt"])

    async def _publish(self, resource: Resource[WebhookConfiguration], configuration: str, authority: str) -> None:
        """Tells the API server whom to trust. After the certificate: until then the webhook has none to show."""
        try:
            found = await self._client.get(resource, Key("", configuration))
        except NotFound:
            return
        operations = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": authority}
            for index, webhook in enumerate(found.webhooks)
            if webhook.client_config.ca_bundle != authority
        ]
        if operations:
            version = {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version}
            key, patch = Key("", configuration), [version, *operations]
            await self._client.patch(resource, key, patch, content_type=JSON_PATCH)

    async def _read(self, name: str) -> Secret | None:
        try:
            return await self._client.get(SECRETS, Key(self._namespace, name))
        except NotFound:
            return None

    async def _write(self, name: str, before: Secret | None, data: dict[str, str], until: datetime) -> Secret:
        """Of two controllers that write at once, one gets AlreadyExists or Conflict, and reads again later."""
        annotations, labels = {NOT_AFTER_ANNOTATION: rfc3339(until)}, {MANAGED_BY_LABEL: MANAGED_BY}
        if before is None:
            owners = await own_account(self._client, self._namespace)
            meta = AnnotatedMeta(
                name, self._namespace, annotations=annotations, labels=labels, owner_references=owners
            )
            return await self._client.create(SECRETS, Secret(meta, "kubernetes.io/tls", data))
        meta = structs.replace(before.metadata, annotations={**before.metadata.annotations, **annotations})
        return await patch_changes(self._client, SECRETS, before, Secret(meta, before.type, data))


def _content(pair: KeyPair) -> dict[str, str]:
    return {"tls.key": _encoded(pair.key), "tls.crt": _encoded(pair.certificate)}


def _pair(secret: Secret) -> KeyPair:
    try:
        key, certificate = (b64decode(secret.data[name]).decode() for name in ("tls.key", "tls.crt"))
    except (KeyError, ValueError) as error:
        raise ImexError(f"Secret {AUTHORITY_SECRET} has no usable tls.key and tls.crt: delete it") from error
    return KeyPair(key, certificate)


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()
