"""The content of the files that nvidia-imex reads.

It reads its configuration and its node list only at start: they follow from its `Identity`. It reads the hosts
file at start and after SIGUSR1: that has the addresses of a member list.
"""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from imex_dra.api.limits import MAX_ADDRESS
from imex_dra.api.names import DAEMON_NAME, IMEX_PORTS
from imex_dra.imex.memberlist import MemberList

UNUSED_ADDRESS = "127.0.0.2"
"""The address of an index without a member: it refuses connections at once, so nvidia-imex does not wait."""

SERVER_PORT, COMMAND_PORT = IMEX_PORTS

GRACE_TIME = 600
"""Seconds until nvidia-imex cleans up imports and exports with a node that it has lost; its default is forever.
The controller suspends a member after the same time.
"""

_LONGEST_GENERATION = 19


class Identity(Struct, frozen=True, rename="camel"):
    """What nvidia-imex reads only at start: a change needs a restart."""

    partition: str
    max_nodes: int
    name_format: str
    own_index: int
    own_address: str
    quorum: str
    """IMEX_WAIT_FOR_QUORUM."""
    tls: bool = False
    """Whether daemons authenticate each other and encrypt, with the certificate of the controller's Secret."""

    @property
    def name(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def nodes_file(self) -> str:
        return "".join(f"{self.name_format % index}\n" for index in range(self.max_nodes))

    def config_file(self, *, nodes_file: Path, command_socket: Path, tls_directory: Path) -> str:
        settings = {
            "LOG_LEVEL": "4",
            "LOG_FILE_NAME": "",
            "DAEMONIZE": "0",
            "BIND_INTERFACE_IP": self.own_address,
            "SERVER_PORT": str(SERVER_PORT),
            "IMEX_NODE_CONFIG_FILE": str(nodes_file),
            "IMEX_WAIT_FOR_QUORUM": self.quorum,
            "IMEX_NODE_DISCONNECTED_GRACE_TIME": str(GRACE_TIME),
            "IMEX_CMD_ENABLED": "1",
            "IMEX_CMD_BIND_INTERFACE_IP": self.own_address,
            "IMEX_CMD_PORT": str(COMMAND_PORT),
            "IMEX_CMD_UNIX_DOMAIN_PATH": str(command_socket),
            **(_encryption(tls_directory) if self.tls else {}),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def _encryption(directory: Path) -> dict[str, str]:
    """The files are those of a Secret of type kubernetes.io/tls. One certificate is for both sides."""
    files = {"KEY": "tls.key", "CERT": "tls.crt", "CERT_AUTH": "ca.crt"}
    return {
        "IMEX_ENABLE_AUTH_ENCRYPTION": "1",
        "IMEX_AUTH_ENCRYPTION_MODE": "SSL_TLS",
        "IMEX_AUTH_SOURCE": "FILE",
        **{
            f"IMEX_{side}_{key}": f"{directory / name}"
            for side in ("SERVER", "CLIENT")
            for key, name in files.items()
        },
        "IMEX_SECURITY_TARGET_OVERRIDE": DAEMON_NAME,
    }


def identity_of(member_list: MemberList, quorum: str, *, tls: bool = False) -> Identity:
    return Identity(
        partition=member_list.partition,
        max_nodes=member_list.max_nodes,
        name_format=member_list.name_format,
        own_index=member_list.own_index,
        own_address=member_list.own_address,
        quorum=quorum,
        tls=tls,
    )


class HostsFile(NamedTuple):
    """A line that says which member list it is, and the lines that the resolver reads.

    All lists of one partition have the same size, so that one replaces another without a moment at which the file
    is shorter or longer than its content. Every index has an address: no name is ever looked up in DNS.
    """

    title: str
    entries: str

    @property
    def content(self) -> str:
        return f"{self.title}\n{self.entries}"


def hosts_file(member_list: MemberList) -> HostsFile:
    names = {"localhost": "127.0.0.1"} | {
        member_list.name_format % index: member_list.addresses.get(index, UNUSED_ADDRESS)
        for index in range(member_list.max_nodes)
    }
    return HostsFile(
        f"# generation {member_list.generation:<{_LONGEST_GENERATION}} of {member_list.partition}",
        "".join(f"{address:<{MAX_ADDRESS}} {name}\n" for name, address in names.items()),
    )


def generation_in(title: str, partition: str) -> int:
    """0 if the title names another partition, or none."""
    found = re.fullmatch(r"# generation (\d+) +of (\S+)", title)
    return int(found[1]) if found and found[2] == partition else 0
