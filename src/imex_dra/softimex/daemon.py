"""`soft-nvidia-imex`: the command line of `nvidia-imex`, in the foreground or as a daemon.

With DAEMONIZE=1 the command returns when the daemon can be reached, or fails with the daemon's own error: what
a systemd unit of type `forking` expects.
"""

import getopt
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from imex_dra.softimex import config as configuration
from imex_dra.softimex import noderoot, session
from imex_dra.softimex.broker import Broker
from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.journal import ERROR, Journal, open_journal

STARTED = b"started"
USAGE = """\
usage: soft-nvidia-imex [-c CONFIG] [-p PORT] [--nogpu]

  -c CONFIG        default: etc/nvidia-imex/config.cfg of the node root
  -p, --port PORT  instead of SERVER_PORT
  --nogpu          run without a GPU and without memory
  -h, --help       this text
"""


class Options(NamedTuple):
    config: str = ""
    port: int = 0
    no_gpu: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    for early in (signal.SIGUSR1, signal.SIGHUP):
        signal.signal(early, signal.SIG_IGN)
    words = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0
    try:
        options = parse(words)
        root = noderoot.from_environment()
        config, warnings = configuration.read(options.config or root.file(configuration.DEFAULT_PATH), root.path)
        if options.port:
            config = config._replace(server_port=options.port)
        return _run(root, config, warnings, options.no_gpu)
    except StartError as error:
        Journal(ERROR).error(str(error))
        return 1


def parse(words: Sequence[str]) -> Options:
    """-nogpu is one word, as nvidia-imex has it."""
    try:
        given, rest = getopt.getopt([_LONG.get(word, word) for word in words], "c:p:", ["port=", "nogpu"])
    except getopt.GetoptError as error:
        raise StartError(f"{error}. See soft-nvidia-imex --help") from None
    if rest:
        raise StartError(f"{rest[0]!r} is no option. See soft-nvidia-imex --help")
    values = dict(given)
    port = values.get("--port", values.get("-p", ""))
    return Options(values.get("-c", ""), _port(port) if port else 0, "--nogpu" in values)


_LONG = {"-nogpu": "--nogpu"}


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise StartError(f"{text!r} is no port: a whole number from 1 to 65535")
    return int(text)


def _run(root: noderoot.NodeRoot, config: Config, warnings: Sequence[str], no_gpu: bool) -> int:
    report = _detach() if config.daemonize else None
    journal = open_journal(config.log_level, config.log_file_name, config.log_append_to_log)
    for warning in warnings:
        journal.warning(warning)
    try:
        broker = _start(root, config, no_gpu, journal)
    except StartError as error:
        journal.error(str(error))
        if report is not None:
            os.write(report, str(error).encode())
        return 1
    if report is not None:
        _let_go(report)
    broker.run()
    return 0


def _start(root: noderoot.NodeRoot, config: Config, no_gpu: bool, journal: Journal) -> Broker:
    session.raise_descriptor_limit()
    if no_gpu:
        journal.info("running in NO GPU MODE")
    broker = Broker(root, config, session.find_hardware(root, no_gpu), journal)
    broker.start()
    return broker


def _detach() -> int:
    """Go on in a process of its own; the first one waits for news from it, and ends as it tells."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            news = pipe.read()
        if news != STARTED:
            Journal(ERROR).error(news.decode(errors="replace") or "the daemon ended before it was started")
        os._exit(0 if news == STARTED else 1)
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    return writer


def _let_go(report: int) -> None:
    """Started: no terminal from here on, and the first process may end."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    os.write(report, STARTED)
    os.close(report)


if __name__ == "__main__":
    sys.exit(main())
