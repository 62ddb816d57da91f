"""The flags of kube-apiserver, as kubeadm sets it up, and the loopback port that it keeps across restarts.

It has its own certificates, Node and RBAC authorization, and service account tokens. Every request is in the audit
log (`audit.k8s.io/v1`, level Metadata, one JSON object per line) before its response is sent.
"""

import json
import socket
from pathlib import Path

from imex_sandbox.kubernetes.certificates import Authority, write_key
from imex_sandbox.kubernetes.etcd import Etcd

SERVICE_CIDR = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""Cluster IP of the Service `kubernetes`."""

_ISSUER = "https://kubernetes.default.svc"
_SUBJECT_ALTERNATIVE_NAMES = (
    "IP:127.0.0.1",
    f"IP:{SERVICE_ADDRESS}",
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
)
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ReservedPort:
    """A loopback port that stays reserved while its server restarts, from the moment the port is chosen.

    The reservation is a bound socket that does not listen. A server that binds with SO_REUSEPORT, as
    kube-apiserver does with `--permit-port-sharing`, can share the port. The kernel does not give it to any other
    socket.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((address, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def flags(directory: Path, *, port: int, authority: Authority, token_file: Path, audit_log: Path) -> list[str]:
    return [
        f"--etcd-servers={Etcd.url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--token-auth-file={token_file}",
        f"--client-ca-file={authority.certificate}",
        *_serving(authority),
        *_kubelet_client(authority),
        *_service_accounts(directory),
        *_audit(directory, audit_log),
    ]


def _serving(authority: Authority) -> list[str]:
    serving = authority.server("kube-apiserver", _SUBJECT_ALTERNATIVE_NAMES)
    return [f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}"]


def _kubelet_client(authority: Authority) -> list[str]:
    """The API server uses this certificate for `kubectl logs` and `kubectl exec`."""
    client = authority.client("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
    return [
        f"--kubelet-client-certificate={client.certificate}",
        f"--kubelet-client-key={client.key}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _service_accounts(directory: Path) -> list[str]:
    key = directory / "service-accounts.key"
    write_key(key)
    return [
        f"--service-account-issuer={_ISSUER}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
    ]


def _audit(directory: Path, log: Path) -> list[str]:
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT_POLICY))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-maxsize=0"]
