"""HTTP connections to the API server, configured by the pod's service account or a kubeconfig."""

import socket
from pathlib import Path

import httpx2
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from imex_dra import __version__
from imex_dra.base.errors import Misconfigured
from imex_dra.kube.transport import Transport

_TIMEOUT = httpx2.Timeout(10)
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=60)
"""Each watch uses a connection, and a simulated rack has more watches than httpx's default limit of 100.

Idle connections are kept for 60 s (httpx: 5 s), so that most prepares read their claim without a TLS handshake.
The API server closes idle connections after 90 s. A controller that catches up uses a connection for each worker.
"""
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""An idle connection to an API server that disappeared is closed after 16 s. A request on it before that fails
with its own timeout of 10 s.
"""


def connect(component: str, kubeconfig: Path | None = None) -> httpx2.AsyncClient:
    """`component` is the user agent, and the field manager of server-side apply."""
    config = _load(kubeconfig)
    parameters = ConnectionParams(timeout=_TIMEOUT).httpx_params(config)
    parameters["transport"] = Transport(
        verify=parameters["verify"],
        limits=_CONNECTIONS,
        trust_env=parameters["trust_env"],
        socket_options=_KEEPALIVE,
    )
    return httpx2.AsyncClient(**parameters, headers={"User-Agent": f"{component}/{__version__}"})


def default_namespace(kubeconfig: Path | None = None) -> str:
    """Of the kubeconfig's current context, as kubectl uses it."""
    return _load(kubeconfig).namespace or "default"


def _load(kubeconfig: Path | None) -> SingleConfig:
    try:
        config = (KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env(SERVICE_ACCOUNT)).get()
    except (ConfigError, KeyError, OSError, ValueError) as error:
        where = kubeconfig or "the pod's service account or KUBECONFIG"
        raise Misconfigured(f"no usable cluster configuration in {where}: {error}") from error
    assert config is not None
    return config if config.user else config._replace(user=User())
