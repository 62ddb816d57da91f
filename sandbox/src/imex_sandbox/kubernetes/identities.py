"""Users of a control plane: bearer tokens for users known at its start, client certificates for users added later.

kube-apiserver reads its token file only when it starts, so nodes, which can join at any time, use certificates. A
client certificate cannot be used through a proxy that terminates TLS, so tests with such a proxy use tokens.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.kubernetes.kubectl import Credential, certificate_credential, token_credential, write_kubeconfig

ADMIN = "admin"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"

_BUILT_IN: Mapping[str, Sequence[str]] = {ADMIN: ("system:masters",), CONTROLLER_MANAGER: (), SCHEDULER: ()}


class Identities:
    """`users` maps names of users to their groups."""

    def __init__(
        self, directory: Path, *, url: str, authority: Authority, users: Mapping[str, Sequence[str]]
    ) -> None:
        self.token_file = directory / "tokens.csv"
        self._directory = directory
        self._url = url
        self._authority = authority
        self._tokens = {user: secrets.token_urlsafe(24) for user in {**_BUILT_IN, **users}}
        self._write_tokens({**users, **_BUILT_IN})

    def token(self, user: str) -> str:
        if user not in self._tokens:
            known = ", ".join(self._tokens)
            raise Misconfigured(
                f"user {user} has no token: add it to `users` of the control plane. Users: {known}"
            )
        return self._tokens[user]

    def with_token(self, user: str) -> Path:
        """A kubeconfig."""
        return self.write(user, token_credential(self.token(user)))

    def with_certificate(self, user: str, groups: Sequence[str]) -> Path:
        """A kubeconfig with a new certificate."""
        certificate = self._authority.client(_file_name(user), user, groups)
        return self.write(user, certificate_credential(certificate))

    def write(self, user: str, credential: Credential) -> Path:
        path = self._directory / f"{_file_name(user)}.kubeconfig"
        authority = self._authority.certificate
        return write_kubeconfig(path, url=self._url, authority=authority, user=user, credential=credential)

    def _write_tokens(self, groups: Mapping[str, Sequence[str]]) -> None:
        lines = [f'{token},{user},{user},"{",".join(groups[user])}"\n' for user, token in self._tokens.items()]
        with os.fdopen(os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(lines)


def _file_name(user: str) -> str:
    return user.replace(":", "_").replace("/", "_")
