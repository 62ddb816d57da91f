"""`soft-nvidia-imex`: the command line of `nvidia-imex`, in the foreground or as a daemon.

With DAEMONIZE=1 the command returns when the daemon accepts connections, or fails with the error of the daemon,
as a systemd unit of type `forking` expects.
"""

import getopt
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from imex_sandbox.softimex import config as configuration
from imex_sandbox.softimex import noderoot
from imex_sandbox.softimex.config import Config
from imex_sandbox.softimex.daemonlog import ERROR, DaemonLog, open_log
from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.noderoot import NO_GPU, NodeRoot
from imex_sandbox.softimex.service import ImexService

STARTED = b"started"
USAGE = """\
usage: soft-nvidia-imex [-c CONFIG] [-p PORT] [--nogpu]

  -c CONFIG        configuration file (default: etc/nvidia-imex/config.cfg in the node root)
  -p, --port PORT  server port, overrides SERVER_PORT
  --nogpu          run without a GPU and without memory exchange
  -h, --help       show this help
"""


class Options(NamedTuple):
    config: str = ""
    port: int = 0
    no_gpu: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    # Until the handlers are installed, these signals would end the process.
    for number in (signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        return 0
    try:
        options = parse(arguments)
        root = noderoot.from_environment()
        config, warnings = configuration.read(options.config or root.file(configuration.DEFAULT_PATH), root.path)
        if options.port:
            config = config._replace(server_port=options.port)
        return _run(root, config, warnings, options.no_gpu)
    except StartError as error:
        DaemonLog(ERROR).error(str(error))
        return 1


def parse(arguments: Sequence[str]) -> Options:
    # nvidia-imex takes -nogpu as one option; getopt would read it as -n -o -g -p -u.
    long = ["--nogpu" if argument == "-nogpu" else argument for argument in arguments]
    try:
        parsed, rest = getopt.getopt(long, "c:p:", ["port=", "nogpu"])
    except getopt.GetoptError as error:
        raise StartError(f"{error}. See soft-nvidia-imex --help") from None
    if rest:
        raise StartError(f"unexpected argument {rest[0]!r}. See soft-nvidia-imex --help")
    options = dict(parsed)
    port = options.get("--port", options.get("-p", ""))
    return Options(options.get("-c", ""), _port(port) if port else 0, "--nogpu" in options)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise StartError(f"invalid port {text!r}: it must be an integer from 1 to 65535")
    return int(text)


def _run(root: NodeRoot, config: Config, warnings: Sequence[str], no_gpu: bool) -> int:
    report = _daemonize() if config.daemonize else None
    daemon_log = open_log(config.log_level, config.log_file_name, config.log_append_to_log)
    for warning in warnings:
        daemon_log.warning(warning)
    try:
        service = _start(root, config, no_gpu, daemon_log)
    except StartError as error:
        daemon_log.error(str(error))
        if report is not None:
            os.write(report, str(error).encode())
        return 1
    if report is not None:
        _report_started(report)
    service.run()
    return 0


def _start(root: NodeRoot, config: Config, no_gpu: bool, daemon_log: DaemonLog) -> ImexService:
    _raise_descriptor_limit()
    if no_gpu:
        daemon_log.info("running in NO GPU MODE")
    service = ImexService(root, config, NO_GPU if no_gpu else root.require_hardware(), daemon_log)
    service.start()
    return service


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _daemonize() -> int:
    """Continue in a background process. The first process waits for its report and exits accordingly."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            result = pipe.read()
        if result != STARTED:
            DaemonLog(ERROR).error(result.decode(errors="replace") or "the daemon exited before it had started")
        os._exit(0 if result == STARTED else 1)
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    return writer


def _report_started(report: int) -> None:
    """Detach from the terminal and let the first process exit."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    os.write(report, STARTED)
    os.close(report)


if __name__ == "__main__":
    sys.exit(main())
