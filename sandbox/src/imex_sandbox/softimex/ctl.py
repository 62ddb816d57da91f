"""`soft-nvidia-imex-ctl`: the command line of `nvidia-imex-ctl`.

It prints only the requested output on stdout and errors on stderr. It exits with 0, or with 255 on an error, as
the original does.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NoReturn

from imex_sandbox.softimex import config as configuration
from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.command import Endpoint, command_endpoint, query_states
from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.domain import Domain, QueryNetwork, query_domain, render_json, render_text
from imex_sandbox.softimex.errors import QueryError, SoftImexError
from imex_sandbox.softimex.noderoot import NODE_ROOT_VARIABLE, NodeRoot
from imex_sandbox.softimex.sockets import is_address

FAILURE = 255
REPLY_SECONDS = 2.0
REFRESH_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        for text in _answers(options, NodeRoot(os.environ.get(NODE_ROOT_VARIABLE, "/"))):
            print(text, flush=True)
    except SoftImexError as error:
        print(error, file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return 0
    return 0


def answers(argv: Sequence[str], root: NodeRoot) -> Iterator[str]:
    """The output of the program, for callers that query too often to start a process each time."""
    return _answers(_parser().parse_args(argv), root)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILURE, f"{message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="soft-nvidia-imex-ctl", allow_abbrev=False)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-i", "--i", dest="endpoint", nargs=2, metavar=("IP", "PORT"), help="query the daemon at this address"
    )
    where.add_argument("-u", "--u", dest="unix", metavar="PATH", help="query the daemon at this Unix socket")
    where.add_argument(
        "-c", "--c", dest="config", metavar="CONFIG", help="query the daemon with this configuration file"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    for letter, meaning in (
        ("q", "print the state of the daemon"),
        ("s", "print the state of the daemon and every change"),
        ("N", "print the state of the domain"),
        ("n", "print the state of the domain and every change"),
    ):
        what.add_argument(f"-{letter}", dest="what", action="store_const", const=letter, help=meaning)
    parser.add_argument("-t", dest="milliseconds", type=int, metavar="MS", help="stop after this time")
    parser.add_argument("-H", dest="names", action="store_true", help="print host names (-n, -N)")
    parser.add_argument("-j", dest="json", action="store_true", help="print JSON (-n, -N)")
    return parser


def _answers(options: argparse.Namespace, root: NodeRoot) -> Iterator[str]:
    seconds = None if options.milliseconds is None else max(0, options.milliseconds) / 1000
    if options.what in "nN":
        if options.endpoint or options.unix:
            raise QueryError("-n and -N need the configuration file: use -c instead of -i or -u")
        yield from _domain(options, root, seconds)
    elif options.names or options.json:
        raise QueryError("-H and -j require -n or -N")
    elif options.what == "s":
        yield from query_states(_endpoint(options, root), "watch", seconds)
    else:
        yield _state(_endpoint(options, root), seconds)


def _state(endpoint: Endpoint, seconds: float | None) -> str:
    for state in query_states(endpoint, "state", REPLY_SECONDS if seconds is None else seconds):
        return state
    raise QueryError("nvidia-imex accepted the connection, but did not reply. Does it hang?")


def _endpoint(options: argparse.Namespace, root: NodeRoot) -> Endpoint:
    if options.unix:
        return str(options.unix)
    if options.endpoint:
        address, port = options.endpoint
        if not is_address(address) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise QueryError(f"-i needs an IP address and a port, not {address!r} {port!r}")
        return address, int(port)
    return command_endpoint(_configuration(options, root), root)


def _configuration(options: argparse.Namespace, root: NodeRoot) -> Config:
    return configuration.read(options.config or root.file(configuration.DEFAULT_PATH), root.path)[0]


def _domain(options: argparse.Namespace, root: NodeRoot, seconds: float | None) -> Iterator[str]:
    config = _configuration(options, root)
    entries = nodemap.read_nodes(config.imex_node_config_file)
    local = nodemap.find_local_node(entries, root.hosts(), root.addresses(), config.bind_interface_ip)
    own = local.address if local else ""
    before = None
    for domain in _domains(root, entries, own, config.imex_cmd_port, options.what == "n", seconds):
        if domain != before:
            yield _render(options, root, domain, before, own)
        before = domain


def _domains(
    root: NodeRoot, entries: Sequence[str], own: str, port: int, continuously: bool, seconds: float | None
) -> Iterator[Domain]:
    reply_seconds = REPLY_SECONDS if continuously or seconds is None else seconds
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        yield query_domain(entries, QueryNetwork(own, root.hosts(), root.network(), port), reply_seconds)
        if not continuously or (deadline is not None and time.monotonic() >= deadline):
            return
        time.sleep(REFRESH_SECONDS)


def _render(options: argparse.Namespace, root: NodeRoot, domain: Domain, before: Domain | None, own: str) -> str:
    names = {address: name for name, address in root.hosts().items()} if options.names else None
    now = datetime.now().astimezone()
    return render_json(domain, now, names, before) if options.json else render_text(domain, now, own, names)


if __name__ == "__main__":
    sys.exit(main())
