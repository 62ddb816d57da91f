"""How long-running programs end, after a signal and with an error, and how they log."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from imex_dra.base.errors import ImexError, Misconfigured, NotYet, OtherDriver, Unavailable
from imex_dra.cli.running import run_until_stopped


async def fail(error: Exception) -> None:
    raise error


async def fail_together(*errors: Exception) -> None:
    """Like a program with nested TaskGroups."""
    barrier = asyncio.Barrier(len(errors))

    async def part(error: Exception) -> None:
        async with asyncio.TaskGroup() as inner:
            await barrier.wait()
            inner.create_task(fail(error))

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(part(error))


def test_an_imex_error_is_raised_unchanged() -> None:
    with pytest.raises(Misconfigured, match=r"^no such file$"):
        run_until_stopped(fail(Misconfigured("no such file")), "info")


def test_a_single_imex_error_is_unwrapped_from_its_task_groups() -> None:
    with pytest.raises(Unavailable, match=r"^the API server is gone$"):
        run_until_stopped(fail_together(Unavailable("the API server is gone")), "info")


def test_several_imex_errors_become_one_with_all_messages() -> None:
    with pytest.raises(ImexError) as ended:
        run_until_stopped(fail_together(NotYet("the first"), Unavailable("the second")), "info")
    assert set(str(ended.value).split("; ")) == {"the first", "the second"}


def test_another_driver_decides_the_exit_status_whatever_else_fails() -> None:
    with pytest.raises(OtherDriver, match=r"^found a DaemonSet$"):
        run_until_stopped(fail_together(NotYet("the first"), OtherDriver("found a DaemonSet")), "info")


def test_an_unexpected_error_is_raised_with_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_until_stopped(fail(ZeroDivisionError("no")), "info")
    with pytest.raises(ExceptionGroup) as ended:
        run_until_stopped(fail_together(NotYet("ours"), ZeroDivisionError("not ours")), "info")
    assert ended.value.subgroup(ZeroDivisionError)
    assert ended.value.subgroup(NotYet)


SCRIPT = """
import asyncio
from imex_dra.cli.running import run_until_stopped

async def program():
    print("started", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.1)
        print("cleaned up", flush=True)

run_until_stopped(program(), "info")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_a_program_cleans_up_and_exits_with_0(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, number)
        assert process.stdout.read() == "cleaned up\n"
        assert process.wait(60) == 0


LOGGING_SCRIPT = """
import asyncio, signal, sys, structlog
from imex_dra.cli.running import run_until_stopped

log = structlog.get_logger()

async def program():
    for line in sys.stdin:
        log.debug("detail", round=line.strip())
        log.info("news", round=line.strip())
        try:
            raise ValueError("wrong")
        except ValueError:
            log.exception("failed", round=line.strip())
        signal.raise_signal(signal.SIGUSR2)
        await asyncio.sleep(0.01)

run_until_stopped(program(), *sys.argv[1:])
"""


def log_of(*arguments: str) -> str:
    """Three rounds, each of a debug, an info and an error message, with SIGUSR2 after each round."""
    script = [sys.executable, "-c", LOGGING_SCRIPT, *arguments]
    done = subprocess.run(script, input="1\n2\n3\n", capture_output=True, text=True, check=True, timeout=60)
    return done.stderr


def test_sigusr2_switches_to_debug_and_back_also_for_loggers_that_were_used_before() -> None:
    lines = [json.loads(line) for line in log_of("info").splitlines()]
    logged = [line["round"] + line["level"] for line in lines if "round" in line]
    assert logged == ["1info", "1error", "2debug", "2info", "2error", "3info", "3error"]
    changes = [line for line in lines if line["event"] == "the log level changed"]
    assert [change["lowest"] for change in changes] == ["debug", "info", "debug"]


FAILING_SCRIPT = """
import asyncio, logging, sys
from imex_dra.base.errors import Misconfigured, OtherDriver
from imex_dra.cli import imex, main
from imex_dra.cli.running import run_until_stopped

async def program():
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    logging.getLogger("grpc").info("not logged")
    raise {"1": Misconfigured, "3": OtherDriver}[kind]("it is 'wrong'")

format, kind = sys.argv[1:]
imex.command("fail")(lambda: run_until_stopped(program(), "info", format))
sys.argv[1:] = ["fail"]
main()
"""


@pytest.mark.parametrize("status", [1, 3])
@pytest.mark.parametrize("format", ["json", "text"])
def test_what_libraries_log_and_the_error_that_ends_a_program_have_the_format_of_the_log(
    format: str, status: int
) -> None:
    script = [sys.executable, "-c", FAILING_SCRIPT, format, str(status)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status
    library, fatal = done.stderr.splitlines()
    if format == "json":
        found = json.loads(library)
        assert (found["event"], found["level"]) == ("Task exception was never retrieved", "error")
        assert (found["logger"], "timestamp" in found) == ("asyncio", True)
        found = json.loads(fatal)
        assert (found["event"], found["level"]) == ("it is 'wrong'", "critical")
    else:
        assert "[error    ] Task exception was never retrieved" in library
        assert fatal == "imex: it is 'wrong'"


def test_messages_below_the_level_are_dropped() -> None:
    lines = [json.loads(line) for line in log_of("error").splitlines()]
    assert next(line["round"] + line["level"] for line in lines if "round" in line) == "1error"


def test_the_format_is_json_unless_text_is_given() -> None:
    """Text also without a terminal, with a traceback in lines of its own and without colors."""
    line = json.loads(log_of("info", "json").splitlines()[1])
    assert line["exception"].endswith("ValueError: wrong")
    text = log_of("info", "text")
    assert "news" in text.splitlines()[0]
    assert "\nValueError: wrong\n" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("command", ["controller", "node"])
def test_long_running_programs_accept_a_log_format_also_from_the_environment(command: str) -> None:
    argv = [sys.executable, "-m", "imex_dra.cli", command]
    required = {"IMEX_NODE_NAME": "a0", "IMEX_ADDRESS": "192.0.2.1"}
    environment = {**os.environ, **required, "IMEX_LOG_FORMAT": "xml"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "'xml' is not one of 'json', 'text'" in done.stderr


def test_a_program_that_is_pid_1_ends_at_sigterm_while_it_still_imports() -> None:
    """The kernel drops a SIGTERM to pid 1 that it does not handle; the container would be killed later."""
    script = """
import signal, sys
from imex_dra import cli
def load():
    signal.raise_signal(signal.SIGTERM)
    print("the signal was dropped", flush=True)
cli.imex = lambda **_: load()
cli.main()
"""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    argv = [*unshare, sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
