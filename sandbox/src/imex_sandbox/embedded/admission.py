"""What a server checks and completes before it stores an object: names, unknown fields, defaults, schemas."""

import re
from collections.abc import Callable
from contextvars import ContextVar

from imex_sandbox.embedded import builtin, validation
from imex_sandbox.embedded.definitions import Definitions, accepted_status
from imex_sandbox.embedded.kinds import CRDS, LISTED_ONLY, NAMESPACES, Kind
from imex_sandbox.embedded.lists import ListKeys, applied_keys
from imex_sandbox.embedded.objects import Admission
from imex_sandbox.embedded.podvalidation import to_json
from imex_sandbox.embedded.statuses import Json, Undecodable, invalid, no_controller

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RULE = "must consist of lower case alphanumeric characters"

field_validation: ContextVar[str] = ContextVar("field_validation", default="Warn")
"""Of the current request: Strict, Warn or Ignore."""

warnings: ContextVar[list[str]] = ContextVar("warnings")
"""Of the current request; a server sends them in `Warning` headers."""


class ServerAdmission(Admission):
    def __init__(self, definitions: Definitions, now: Callable[[], str]) -> None:
        self._definitions = definitions
        self._now = now

    def admit(self, kind: Kind, document: Json, old: Json | None, *, subresource: str = "") -> Json:
        if kind in LISTED_ONLY:
            raise no_controller(kind)
        unknown: list[str] = []
        definition = self._definitions.of(kind)
        decode = builtin.decode_metadata if definition else builtin.decode
        document = decode(kind, document, unknown)
        if old is None:
            _check_name(kind, document["metadata"]["name"])
        if not subresource:
            validation.check_metadata(kind, document["metadata"])
        if definition:
            document = definition.schema.with_defaults(definition.schema.prune(document, unknown))
            _report(kind, unknown)
            if causes := definition.schema.causes(document, old):
                raise invalid(kind, document["metadata"]["name"], *causes)
            return document
        _report(kind, unknown)
        document = builtin.with_defaults(kind, document)
        validation.check(kind, document, old)
        if kind is CRDS:
            self._definitions.check(document)
            if old is None:
                document = {**document, "status": accepted_status(document, self._now())}
        if kind.group == "admissionregistration.k8s.io":
            _warn("admission policies are stored, but the embedded control plane does not enforce them")
        if kind.plural == "daemonsets":
            _warn("DaemonSets are stored, but the embedded control plane creates no pods for them")
        return builtin.created(kind, document) if old is None else document

    def list_keys(self, kind: Kind) -> ListKeys:
        definition = self._definitions.of(kind)
        return definition.schema.list_keys() if definition else applied_keys


def _check_name(kind: Kind, name: str) -> None:
    if kind.group == "rbac.authorization.k8s.io":
        return
    label = kind is NAMESPACES
    if len(name) > (63 if label else 253) or not (_LABEL if label else _SUBDOMAIN).fullmatch(name):
        what = "a lowercase RFC 1123 label" if label else "a lowercase RFC 1123 subdomain"
        raise invalid(kind, name, f'metadata.name: Invalid value: "{name}": {what} {_RULE}')


def _report(kind: Kind, unknown: list[str]) -> None:
    match field_validation.get() if unknown else "Ignore":
        case "Strict":
            causes = ", ".join(f"unknown field {to_json(field)}" for field in unknown)
            message = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
            raise Undecodable(f"{message}: strict decoding error: {causes}")
        case "Warn":
            for field in unknown:
                _warn(f"unknown field {to_json(field)}")


def _warn(text: str) -> None:
    found = warnings.get(None)
    if found is not None and text not in found:
        found.append(text)
