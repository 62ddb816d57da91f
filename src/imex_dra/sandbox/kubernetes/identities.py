"""Who may call: bearer tokens for the users known beforehand, client certificates for those who join later.

kube-apiserver reads its token file once, at its start. Tokens pass through a proxy that certificates would
not survive, so tests that put faults in between use them; nodes join at any time, so they use certificates.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubernetes import kubeconfig
from imex_dra.sandbox.kubernetes.certificates import Authority

ADMIN = "admin"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"

_OWN: Mapping[str, Sequence[str]] = {ADMIN: ("system:masters",), CONTROLLER_MANAGER: (), SCHEDULER: ()}


class Identities:
    def __init__(
        self, directory: Path, *, url: str, authority: Authority, users: Mapping[str, Sequence[str]]
    ) -> None:
        self.token_file = directory / "tokens.csv"
        self._directory = directory
        self._url = url
        self._authority = authority
        self._tokens = {user: secrets.token_urlsafe(24) for user in {**_OWN, **users}}
        self._write_tokens({**users, **_OWN})

    def token(self, user: str) -> str:
        if user not in self._tokens:
            known = ", ".join(self._tokens)
            raise Misconfigured(
                f"no token for user {user}: name it when the control plane is made. Known: {known}"
            )
        return self._tokens[user]

    def with_token(self, user: str) -> Path:
        return self.write(user, kubeconfig.bearer(self.token(user)))

    def with_certificate(self, user: str, groups: Sequence[str]) -> Path:
        certificate = self._authority.client(_file(user), user, groups)
        return self.write(user, kubeconfig.certified(certificate))

    def write(self, user: str, credential: kubeconfig.Credential) -> Path:
        path = self._directory / f"{_file(user)}.kubeconfig"
        trusted = self._authority.certificate
        return kubeconfig.write(path, url=self._url, authority=trusted, user=user, credential=credential)

    def _write_tokens(self, groups: Mapping[str, Sequence[str]]) -> None:
        lines = [f'{token},{user},{user},"{",".join(groups[user])}"\n' for user, token in self._tokens.items()]
        with os.fdopen(os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(lines)


def _file(user: str) -> str:
    return user.replace(":", "_").replace("/", "_")
