"""`soft-nvidia-imex`: the command line of `nvidia-imex`, in the foreground or as a daemon.

With DAEMONIZE=1 the command returns when the daemon can be reached, or fails with the daemon's own error: what
a systemd unit of type `forking` expects.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from imex_dra.softimex import config as configuration
from imex_dra.softimex import noderoot, session
from imex_dra.softimex.broker import Broker
from imex_dra.softimex.config import Config
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.journal import ERROR, Journal, open_journal

STARTED = b"started"


def main(argv: Sequence[str] | None = None) -> int:
    for early in (signal.SIGUSR1, signal.SIGHUP):
        signal.signal(early, signal.SIG_IGN)
    options = _parser().parse_args(argv)
    try:
        root = noderoot.from_environment()
        path = Path(options.config) if options.config else root.path / configuration.DEFAULT_PATH
        config, warnings = configuration.read(path, root.path)
        if options.port:
            config = config._replace(server_port=options.port)
        return _run(root, config, warnings, options.nogpu)
    except StartError as error:
        Journal(ERROR).error(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soft-nvidia-imex", description="A software nvidia-imex.", allow_abbrev=False
    )
    parser.add_argument("-c", dest="config", metavar="CONFIG", help="default: etc/nvidia-imex/config.cfg")
    parser.add_argument("-p", "--port", type=_port, help="instead of SERVER_PORT")
    parser.add_argument("--nogpu", "-nogpu", action="store_true", help="run without a GPU and without memory")
    return parser


def _port(text: str) -> int:
    if not 1 <= int(text) <= 65535:
        raise ValueError
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
