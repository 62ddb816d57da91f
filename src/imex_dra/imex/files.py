"""The files that nvidia-imex reads.

nvidia-imex reads its configuration and its node list only at start. The hosts file is read at every lookup, by
other programs too, and may be a bind mount: it is rewritten in place, our lines only, and verified afterwards.
"""

from pathlib import Path

from imex_dra.base.errors import Misconfigured
from imex_dra.base.files import write_atomically
from imex_dra.imex.memberlist import MemberList

_BYTE_FOR_BYTE = "surrogateescape"
"""Lines of other programs need not be UTF-8; they are preserved byte for byte."""

_SERVER_PORT = 50000
_COMMAND_PORT = 50005


class ImexFiles:
    def __init__(self, directory: Path, hosts: Path) -> None:
        self.config = directory / "config.cfg"
        self.member_list = directory / "member-list.json"
        self._nodes = directory / "nodes_config.cfg"
        self._command_socket = directory / "imex_ctrl.sock"
        self._hosts = hosts

    def write(self, member_list: MemberList, *, quorum: str = "RECOVERY") -> None:
        """Writes all files that nvidia-imex needs to start."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, self._settings(member_list, quorum).encode())
        write_atomically(self._nodes, member_list.nodes_file().encode())
        self.write_hosts(member_list)

    def write_hosts(self, member_list: MemberList) -> None:
        addresses = member_list.hosts()
        old = _read(self._hosts) if self._hosts.exists() else ""
        others = [line for line in old.splitlines() if not addresses.keys() & set(line.split()[1:])]
        lines = [*others, *(f"{address}\t{name}" for name, address in addresses.items())]
        content = "".join(f"{line}\n" for line in lines)
        if content == old:
            return
        # In place, not by rename: the hosts file of a container is a bind mount, which cannot be replaced.
        with self._hosts.open("r+" if self._hosts.exists() else "w", errors=_BYTE_FOR_BYTE) as file:
            file.write(content)
            file.truncate()
        if _read(self._hosts) != content:
            raise Misconfigured(
                f"{self._hosts} was changed by another program while it was written: only one program may write it"
            )

    def _settings(self, member_list: MemberList, quorum: str) -> str:
        settings = {
            "LOG_LEVEL": "4",
            "LOG_FILE_NAME": "",
            "DAEMONIZE": "0",
            "BIND_INTERFACE_IP": member_list.own_address,
            "SERVER_PORT": str(_SERVER_PORT),
            "IMEX_NODE_CONFIG_FILE": str(self._nodes),
            "IMEX_WAIT_FOR_QUORUM": quorum,
            "IMEX_CMD_ENABLED": "1",
            "IMEX_CMD_BIND_INTERFACE_IP": member_list.own_address,
            "IMEX_CMD_PORT": str(_COMMAND_PORT),
            "IMEX_CMD_UNIX_DOMAIN_PATH": str(self._command_socket),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def _read(path: Path) -> str:
    return path.read_text(errors=_BYTE_FOR_BYTE)
