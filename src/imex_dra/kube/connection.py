"""HTTP connections to the API server, configured as those of kubectl: by a file that is given, the files of
$KUBECONFIG, ~/.kube/config, or the pod's service account, whatever comes first.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from imex_dra import __version__
from imex_dra.base.errors import Misconfigured
from imex_dra.kube.transport import Transport

_DEFAULT = "~/.kube/config"
_NEXT_STEP = "export KUBECONFIG, which `imex up` prints, or use --kubeconfig FILE"
_ENTRIES = {"contexts": "context", "clusters": "cluster", "users": "user"}
_FILE_FIELDS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")

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


def connect(component: str, kubeconfig: Path | None = None, context: str = "") -> httpx2.AsyncClient:
    """`component` is the user agent, and the field manager of server-side apply."""
    config = _load(kubeconfig, context)
    parameters = ConnectionParams(timeout=_TIMEOUT).httpx_params(config)
    parameters["transport"] = Transport(
        verify=parameters["verify"],
        limits=_CONNECTIONS,
        trust_env=parameters["trust_env"],
        socket_options=_KEEPALIVE,
    )
    return httpx2.AsyncClient(**parameters, headers={"User-Agent": f"{component}/{__version__}"})


def default_namespace(kubeconfig: Path | None = None, context: str = "") -> str:
    """Of the given context, or of the current one, as kubectl uses it."""
    return _load(kubeconfig, context).namespace or "default"


def _load(kubeconfig: Path | None, context: str = "") -> SingleConfig:
    files = [kubeconfig] if kubeconfig else _default_files()
    if not files and not Path(SERVICE_ACCOUNT, "token").is_file():
        raise Misconfigured(f"no kubeconfig was found in KUBECONFIG or {_DEFAULT}: {_NEXT_STEP}")
    where = ", ".join(map(str, files)) or "the pod's service account"
    try:
        found = _merged(files) if files else KubeConfig.from_service_account(SERVICE_ACCOUNT)
        config = found.get(_context(found, context, where))
    except (AttributeError, ConfigError, KeyError, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise Misconfigured(f"no usable cluster configuration in {where}: {_cause(error)}") from error
    assert config is not None
    return config if config.user else config._replace(user=User())


def _cause(error: Exception) -> str:
    match error:
        case KeyError():
            return f"it has no {error}"
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _context(config: KubeConfig, given: str, where: str) -> str:
    """Raises Misconfigured if there is none, or if its cluster or user is not there."""
    name = given or config.current_context or ""
    known = ", ".join(sorted(config.contexts))
    if not name:
        raise Misconfigured(f"{where} has no current context: choose one with --context: {known}")
    if name not in config.contexts:
        raise Misconfigured(f"{where} has no context {name}; it has: {known}")
    context = config.contexts[name]
    if context.cluster not in config.clusters:
        raise Misconfigured(f"{where} has no cluster {context.cluster}, which its context {name} names")
    if context.user and context.user not in config.users:
        raise Misconfigured(f"{where} has no user {context.user}, whom its context {name} names")
    return name


def _default_files() -> list[Path]:
    """Empty if there is only the service account of a pod, or nothing."""
    given = [Path(one) for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    if given:
        # kubectl ignores those of several that are missing, too.
        if found := [file for file in given if file.is_file()]:
            return found
        raise Misconfigured(f"KUBECONFIG is {given[0]}, and there is no such file: {_NEXT_STEP}")
    with suppress(RuntimeError):  # a user without a home directory
        default = Path(_DEFAULT).expanduser()
        return [default] if default.is_file() else []
    return []


def _merged(files: Sequence[Path]) -> KubeConfig:
    """Of several entries with the same name the first one counts, as for kubectl."""
    contents = [_content(file) for file in files]
    for part in ("clusters", "contexts"):
        if not any(content.get(part) for content in contents):
            raise Misconfigured(
                f"{' and '.join(map(str, files))} {'are' if len(files) > 1 else 'is'} no kubeconfig:"
                f" {'they have' if len(files) > 1 else 'it has'} no {part}"
            )
    if len(files) == 1:
        return KubeConfig.from_dict({**contents[0], "users": contents[0].get("users") or []}, fname=files[0])
    current, entries = "", {kind: dict[str, Any]() for kind in _ENTRIES}
    for file, content in zip(files, contents, strict=True):
        current = current or content.get("current-context") or ""
        for kind, singular in _ENTRIES.items():
            for entry in content.get(kind) or ():
                value = _resolved(entry.get(singular) or {}, file.parent)
                entries[kind].setdefault(entry["name"], {"name": entry["name"], singular: value})
    return KubeConfig.from_dict(
        {"current-context": current, **{kind: list(named.values()) for kind, named in entries.items()}}
    )


def _content(file: Path) -> dict[str, Any]:
    content = yaml.safe_load(file.read_text()) or {}
    if not isinstance(content, dict):
        raise Misconfigured(f"{file} is no kubeconfig: it has no clusters")
    return content


def _resolved(entry: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """File names in a kubeconfig are relative to its directory."""
    files = {name: str(directory / entry[name]) for name in _FILE_FIELDS if entry.get(name)}
    return {**entry, **files}
