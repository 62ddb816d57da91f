"""How kube-apiserver is run: as kubeadm sets it up, on a loopback port that it keeps over restarts.

Own certificates, Node and RBAC authorization, service account tokens. Every request is in the audit log
(`audit.k8s.io/v1`, level Metadata, one JSON line each) before its answer is sent.
"""

import json
from pathlib import Path

from imex_dra.sandbox.kubernetes.certificates import Authority, write_key
from imex_dra.sandbox.kubernetes.etcd import Etcd

SERVICES = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"

_ISSUER = "https://kubernetes.default.svc"
_ALTERNATIVES = (
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


def flags(directory: Path, *, port: int, authority: Authority, token_file: Path, audit_log: Path) -> list[str]:
    return [
        f"--etcd-servers={Etcd.url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICES}",
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
    own = authority.server("kube-apiserver", _ALTERNATIVES)
    return [f"--tls-cert-file={own.certificate}", f"--tls-private-key-file={own.key}"]


def _kubelet_client(authority: Authority) -> list[str]:
    """With this the API server fetches logs and runs commands at the kubelets."""
    own = authority.client("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
    return [
        f"--kubelet-client-certificate={own.certificate}",
        f"--kubelet-client-key={own.key}",
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
