"""How long-running programs end: after a signal, and with an error."""

import asyncio
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
