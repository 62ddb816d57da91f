"""`config.cfg`: KEY=VALUE lines, read once at start.

Keys and defaults are those of `nvidia-imex`. An unknown key causes a warning. An invalid value is an error that
names the key and stops the start. Default paths are relative to the node root; configured paths are used
unchanged.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.sockets import is_address

DEFAULT_PATH = "etc/nvidia-imex/config.cfg"


class Config(NamedTuple):
    """The keys that have an effect in soft IMEX, in lower case."""

    log_level: int
    log_file_name: str
    log_append_to_log: bool
    daemonize: bool
    bind_interface_ip: str
    server_port: int
    imex_node_config_file: str
    imex_wait_for_quorum: str
    imex_enable_auth_encryption: bool
    imex_auth_encryption_mode: str
    imex_auth_source: str
    imex_server_key: str
    imex_server_cert: str
    imex_server_cert_auth: str
    imex_client_key: str
    imex_client_cert: str
    imex_client_cert_auth: str
    imex_security_target_override: str
    imex_cmd_enabled: bool
    imex_cmd_bind_interface_ip: str
    imex_cmd_port: int
    imex_cmd_unix_domain_path: str
    imex_node_disconnected_grace_time: int


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not low <= int(value) <= high:
            raise ValueError
        return int(value)

    parse.__doc__ = f"an integer from {low} to {high}"
    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError
        return value

    parse.__doc__ = "one of " + ", ".join(word or "empty" for word in allowed)
    return parse


def _flag(value: str) -> bool:
    """0 or 1"""
    return {"0": False, "1": True}[value]


def _path(value: str) -> str:
    """a path of at most 256 characters"""
    if len(value) > 256 or "\0" in value:
        raise ValueError
    return value


def _address(value: str) -> str:
    """an IPv4 or IPv6 address, or empty"""
    if value and not is_address(value):
        raise ValueError
    return value


def _text(value: str) -> str:
    """text"""
    return value


_port = _integer(1, 65535)
_seconds = _integer(-1, 2**31 - 1)

# The docstring of each parser completes the error "KEY is 'value', but must be …".
RULES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LOG_LEVEL": ("4", _integer(0, 4)),
    "LOG_FILE_NAME": ("var/log/nvidia-imex.log", _path),
    "LOG_APPEND_TO_LOG": ("1", _flag),
    "DAEMONIZE": ("1", _flag),
    "BIND_INTERFACE_IP": ("", _address),
    "SERVER_PORT": ("50000", _port),
    "IMEX_NODE_CONFIG_FILE": ("etc/nvidia-imex/nodes_config.cfg", _path),
    "IMEX_WAIT_FOR_QUORUM": ("RECOVERY", _choice("NONE", "RECOVERY")),
    "IMEX_ENABLE_AUTH_ENCRYPTION": ("0", _flag),
    "IMEX_AUTH_ENCRYPTION_MODE": ("SSL_TLS", _text),
    "IMEX_AUTH_SOURCE": ("", _choice("", "FILE", "ENV_PATH", "ENV_VAL")),
    "IMEX_SERVER_KEY": ("", _text),
    "IMEX_SERVER_CERT": ("", _text),
    "IMEX_SERVER_CERT_AUTH": ("", _text),
    "IMEX_CLIENT_KEY": ("", _text),
    "IMEX_CLIENT_CERT": ("", _text),
    "IMEX_CLIENT_CERT_AUTH": ("", _text),
    "IMEX_SECURITY_TARGET_OVERRIDE": ("", _text),
    "IMEX_CMD_ENABLED": ("1", _flag),
    "IMEX_CMD_BIND_INTERFACE_IP": ("", _address),
    "IMEX_CMD_PORT": ("50005", _port),
    "IMEX_CMD_UNIX_DOMAIN_PATH": ("", _path),
    "IMEX_NODE_DISCONNECTED_GRACE_TIME": ("-1", _seconds),
}
WITHOUT_EFFECT = frozenset(
    {
        "STATS_FILE_NAME",
        "LOG_FILE_MAX_SIZE",
        "LOG_MAX_ROTATE_COUNT",
        "LOG_USE_SYSLOG",
        "NETWORK_INTERFACE",
        "IMEX_GSS_SERVICE_NAME",
        "IMEX_GSS_TIMEOUT_SEC",
        "IMEX_GSS_RETRY_INTERVAL_SEC",
        "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC",
        "IMEX_GSS_SHUTDOWN_ON_FAILURE",
    }
)


def parse(text: str, root: str) -> tuple[Config, list[str]]:
    """The configuration, and warnings about lines that are ignored."""
    given, warnings = _assignments(text)
    values = {key: given.get(key, _default(key, root)) for key in RULES}
    parsed = {key.lower(): _value(key, value) for key, value in values.items()}
    unknown = [key for key in given if key not in RULES and key not in WITHOUT_EFFECT]
    warnings += [f"ignoring the unknown key {key!r} in the configuration" for key in unknown]
    config = Config(**parsed)
    if config.imex_enable_auth_encryption:
        _check_encryption(config)
    return config, warnings


def read(path: str, root: str) -> tuple[Config, list[str]]:
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise StartError(
            f"cannot read the configuration {path}: {error.strerror}. Use -c to specify another file"
        ) from error
    return parse(text, root)


def _assignments(text: str) -> tuple[dict[str, str], list[str]]:
    given: dict[str, str] = {}
    warnings = []
    for number, line in enumerate(text.splitlines(), start=1):
        key, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            warnings.append(f"ignoring line {number} of the configuration: it is not KEY=VALUE")
        else:
            given[key.strip()] = value.strip()
    return given, warnings


def _default(key: str, root: str) -> str:
    default, rule = RULES[key]
    return os.path.join(root, default) if rule is _path and default else default


def _value(key: str, value: str) -> Any:
    rule = RULES[key][1]
    try:
        return rule(value)
    except (ValueError, KeyError):
        raise StartError(f"{key} is {value!r} in the configuration, but must be {rule.__doc__}") from None


def _check_encryption(config: Config) -> None:
    if config.imex_auth_encryption_mode != "SSL_TLS":
        mode = config.imex_auth_encryption_mode
        raise StartError(
            f"IMEX_AUTH_ENCRYPTION_MODE is {mode!r}, but soft IMEX supports only SSL_TLS: set SSL_TLS"
        )
    if config.imex_auth_source != "FILE":
        source = config.imex_auth_source
        raise StartError(f"IMEX_AUTH_SOURCE is {source!r}, but soft IMEX supports only FILE: set FILE")
    for side in ("server", "client"):
        for key in (f"imex_{side}_key", f"imex_{side}_cert", f"imex_{side}_cert_auth"):
            if not getattr(config, key):
                raise StartError(f"{key.upper()} is empty, but encryption is enabled: set it to a PEM file")
