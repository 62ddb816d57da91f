"""How a program reaches its API server: in-cluster, then KUBECONFIG, as lightkube reads them."""

from pathlib import Path

import httpx2
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from imex_dra import __version__
from imex_dra.base.errors import Misconfigured

_TIMEOUT = httpx2.Timeout(10)
_NO_LIMIT = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""Each watch holds a connection; httpx's own limit of a hundred would stop a simulated rack."""


def connect(component: str, kubeconfig: Path | None = None) -> httpx2.AsyncClient:
    """An authenticated HTTP client. The user agent is what API write budgets are counted by."""
    config = _load(kubeconfig)
    parameters = ConnectionParams(timeout=_TIMEOUT).httpx_params(config)
    parameters["transport"] = httpx2.AsyncHTTPTransport(
        verify=parameters["verify"], limits=_NO_LIMIT, trust_env=parameters["trust_env"]
    )
    return httpx2.AsyncClient(**parameters, headers={"User-Agent": f"{component}/{__version__}"})


def _load(kubeconfig: Path | None) -> SingleConfig:
    try:
        config = (KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env(SERVICE_ACCOUNT)).get()
    except (ConfigError, KeyError, OSError, ValueError) as error:
        where = kubeconfig or "the pod's service account or KUBECONFIG"
        raise Misconfigured(f"no usable cluster configuration in {where}: {error}") from error
    assert config is not None
    return config if config.user else config._replace(user=User())
