"""The files that `nvidia-imex` reads, written the way it can bear.

config and nodes file are read only at start. The hosts file is read at every look-up, by others too, and may
be a bind mount: it is rewritten in place, our lines only, and read back.
"""

from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.base.files import write_atomically
from imex_dra.imex.membership import Membership

_AS_IT_IS = "surrogateescape"
"""Lines of others need not be UTF-8; they are kept byte for byte."""

SERVER_PORT = 50000
COMMAND_PORT = 50005


class Files:
    def __init__(self, directory: Path, hosts: Path) -> None:
        self.config = directory / "config.cfg"
        self._nodes = directory / "nodes_config.cfg"
        self._hosts = hosts
        self.command_socket = directory / "imex_ctrl.sock"

    def write(self, membership: Membership, *, quorum: str = "RECOVERY") -> None:
        """Everything that a daemon needs to start."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, self._config(membership, quorum).encode())
        write_atomically(self._nodes, membership.nodes_file().encode())
        self.write_hosts(membership)

    def write_hosts(self, membership: Membership) -> None:
        names = membership.hosts()
        old = _text(self._hosts) if self._hosts.exists() else ""
        others = [line for line in old.splitlines() if not names.keys() & set(line.split()[1:])]
        lines = [*others, *(f"{address}\t{name}" for name, address in names.items())]
        content = "".join(f"{line}\n" for line in lines)
        if content == old:
            return
        with self._hosts.open("r+" if self._hosts.exists() else "w", errors=_AS_IT_IS) as file:
            file.write(content)
            file.truncate()
        if _text(self._hosts) != content:
            raise Misconfigured(f"{self._hosts} was changed by somebody else while it was written")

    def _config(self, membership: Membership, quorum: str) -> str:
        settings = {
            "LOG_LEVEL": "4",
            "LOG_FILE_NAME": "",
            "DAEMONIZE": "0",
            "BIND_INTERFACE_IP": membership.own_address,
            "SERVER_PORT": str(SERVER_PORT),
            "IMEX_NODE_CONFIG_FILE": str(self._nodes),
            "IMEX_WAIT_FOR_QUORUM": quorum,
            "IMEX_CMD_ENABLED": "1",
            "IMEX_CMD_BIND_INTERFACE_IP": membership.own_address,
            "IMEX_CMD_PORT": str(COMMAND_PORT),
            "IMEX_CMD_UNIX_DOMAIN_PATH": str(self.command_socket),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def _text(path: Path) -> str:
    return path.read_text(errors=_AS_IT_IS)
