"""Who sends a request: tokens of a file, tokens of service accounts, and client certificates."""

import csv
import secrets
from pathlib import Path
from typing import Any, NamedTuple

AUTHENTICATED = "system:authenticated"
_SERVICE_ACCOUNTS = "system:serviceaccounts"
_BOUND_NODE = "authentication.kubernetes.io/node-name"


class User(NamedTuple):
    name: str
    groups: frozenset[str]
    node: str = ""
    """That the token is bound to."""

    @property
    def document(self) -> dict[str, Any]:
        extra = {"extra": {_BOUND_NODE: [self.node]}} if self.node else {}
        return {"username": self.name, "groups": sorted(self.groups), **extra}


ANONYMOUS = User("system:anonymous", frozenset({"system:unauthenticated"}))


class Tokens:
    """The file has the format of kube-apiserver's `--token-auth-file`. Tokens of service accounts are in memory:
    they are not signed, and do not expire."""

    def __init__(self, file: Path) -> None:
        self._users: dict[str, User] = {}
        with file.open(newline="") as lines:
            for token, name, _, groups in csv.reader(lines):
                members = [group for group in groups.split(",") if group]
                self._users[token] = User(name, frozenset({*members, AUTHENTICATED}))

    def user(self, authorization: str, certificate: dict[str, Any] | None) -> User | None:
        """None if the credentials are wrong."""
        if authorization:
            scheme, _, token = authorization.partition(" ")
            return self._users.get(token) if scheme.lower() == "bearer" else None
        return _certified(certificate) if certificate else ANONYMOUS

    def service_account(self, namespace: str, name: str, node: str = "") -> str:
        """A new token."""
        token = secrets.token_urlsafe(24)
        groups = {_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{namespace}", AUTHENTICATED}
        self._users[token] = User(f"system:serviceaccount:{namespace}:{name}", frozenset(groups), node)
        return token


def _certified(certificate: dict[str, Any]) -> User:
    fields = [pair for part in certificate.get("subject", ()) for pair in part]
    groups = {value for kind, value in fields if kind == "organizationName"}
    names = [value for kind, value in fields if kind == "commonName"]
    return User(names[0] if names else "", frozenset({*groups, AUTHENTICATED}))
