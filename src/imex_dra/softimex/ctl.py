"""`soft-nvidia-imex-ctl`: the command line of `nvidia-imex-ctl`.

It prints what was asked for on stdout and nothing else, errors on stderr, and ends with 0 or, as the original
does, with 255.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NoReturn

from imex_dra.softimex import config as configuration
from imex_dra.softimex import inquiry, nodemap, view
from imex_dra.softimex.config import Config
from imex_dra.softimex.domain import Domain, Surroundings, survey
from imex_dra.softimex.errors import QueryError, SoftImexError
from imex_dra.softimex.noderoot import VARIABLE, NodeRoot

FAILURE = 255
ANSWER_SECONDS = 2.0
REFRESH_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        for text in _answers(options, NodeRoot(os.environ.get(VARIABLE, "/"))):
            print(text, flush=True)
    except SoftImexError as error:
        print(error, file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return 0
    return 0


def answers(argv: Sequence[str], root: NodeRoot) -> Iterator[str]:
    """What it would print, for who asks so often that a process each time is too much."""
    return _answers(_parser().parse_args(argv), root)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILURE, f"{message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="soft-nvidia-imex-ctl", allow_abbrev=False)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-i", "--i", dest="endpoint", nargs=2, metavar=("IP", "PORT"), help="ask this daemon")
    where.add_argument("-u", "--u", dest="unix", metavar="PATH", help="ask over this unix socket")
    where.add_argument("-c", "--c", dest="config", metavar="CONFIG", help="ask the daemon of this configuration")
    what = parser.add_mutually_exclusive_group(required=True)
    for letter, meaning in (
        ("q", "print the daemon's state"),
        ("s", "print its state, and every change"),
        ("N", "print the domain"),
        ("n", "print the domain, and every change"),
    ):
        what.add_argument(f"-{letter}", dest="what", action="store_const", const=letter, help=meaning)
    parser.add_argument("-t", dest="milliseconds", type=int, metavar="MS", help="for that long at most")
    parser.add_argument("-H", dest="names", action="store_true", help="with host names (-n, -N)")
    parser.add_argument("-j", dest="json", action="store_true", help="as JSON (-n, -N)")
    return parser


def _answers(options: argparse.Namespace, root: NodeRoot) -> Iterator[str]:
    seconds = None if options.milliseconds is None else max(0, options.milliseconds) / 1000
    if options.what in "nN":
        if options.endpoint or options.unix:
            raise QueryError("-n and -N need the configuration file: use -c, not -i or -u")
        yield from _domain(options, root, seconds)
    elif options.names or options.json:
        raise QueryError("-H and -j belong to -n and -N")
    elif options.what == "s":
        yield from inquiry.states(_endpoint(options, root), "watch", seconds)
    else:
        yield _state(_endpoint(options, root), seconds)


def _state(endpoint: inquiry.Endpoint, seconds: float | None) -> str:
    for state in inquiry.states(endpoint, "state", ANSWER_SECONDS if seconds is None else seconds):
        return state
    raise QueryError("nvidia-imex accepted the connection, but did not answer. Does it hang?")


def _endpoint(options: argparse.Namespace, root: NodeRoot) -> inquiry.Endpoint:
    if options.unix:
        return str(options.unix)
    if options.endpoint:
        address, port = options.endpoint
        if not nodemap.is_address(address) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise QueryError(f"-i needs an IP address and a port, not {address!r} {port!r}")
        return address, int(port)
    return inquiry.endpoint_of(_configuration(options, root), root)


def _configuration(options: argparse.Namespace, root: NodeRoot) -> Config:
    return configuration.read(options.config or root.file(configuration.DEFAULT_PATH), root.path)[0]


def _domain(options: argparse.Namespace, root: NodeRoot, seconds: float | None) -> Iterator[str]:
    config = _configuration(options, root)
    entries = nodemap.read_nodes(config.imex_node_config_file)
    seat = nodemap.find_seat(entries, root.hosts(), root.addresses(), config.bind_interface_ip)
    own = seat.address if seat else ""
    before = None
    for domain in _domains(root, entries, own, config.imex_cmd_port, options.what == "n", seconds):
        if domain != before:
            yield _render(options, root, domain, before, own)
        before = domain


def _domains(
    root: NodeRoot, entries: Sequence[str], own: str, port: int, continuously: bool, seconds: float | None
) -> Iterator[Domain]:
    answer_seconds = ANSWER_SECONDS if continuously or seconds is None else seconds
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        yield survey(entries, Surroundings(own, root.hosts(), root.network(), port), answer_seconds)
        if not continuously or (deadline is not None and time.monotonic() >= deadline):
            return
        time.sleep(REFRESH_SECONDS)


def _render(options: argparse.Namespace, root: NodeRoot, domain: Domain, before: Domain | None, own: str) -> str:
    names = {address: name for name, address in root.hosts().items()} if options.names else None
    now = datetime.now().astimezone()
    return view.as_json(domain, now, names, before) if options.json else view.as_text(domain, now, own, names)


if __name__ == "__main__":
    sys.exit(main())
