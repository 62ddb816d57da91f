"""How the long-running programs end: when they are told to, and when they can't go on."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from imex_dra.base.errors import ImexError, Misconfigured, NotYet, Unavailable
from imex_dra.cli.running import run_until_stopped


async def fail(error: Exception) -> None:
    raise error


async def fail_together(*errors: Exception) -> None:
    """As a program does whose parts run in nested groups of tasks."""
    barrier = asyncio.Barrier(len(errors))

    async def part(error: Exception) -> None:
        async with asyncio.TaskGroup() as inner:
            await barrier.wait()
            inner.create_task(fail(error))

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(part(error))


def test_an_error_of_ours_arrives_as_it_is() -> None:
    with pytest.raises(Misconfigured, match=r"^no such file$"):
        run_until_stopped(fail(Misconfigured("no such file")), "info")


def test_out_of_groups_of_tasks_too() -> None:
    with pytest.raises(Unavailable, match=r"^the API server is gone$"):
        run_until_stopped(fail_together(Unavailable("the API server is gone")), "info")


def test_of_several_errors_none_is_lost() -> None:
    with pytest.raises(ImexError) as ended:
        run_until_stopped(fail_together(NotYet("the first"), Unavailable("the second")), "info")
    assert set(str(ended.value).split("; ")) == {"the first", "the second"}


def test_an_error_that_nobody_expected_is_not_made_pretty() -> None:
    with pytest.raises(ZeroDivisionError):
        run_until_stopped(fail(ZeroDivisionError("no")), "info")
    with pytest.raises(ExceptionGroup) as ended:
        run_until_stopped(fail_together(NotYet("ours"), ZeroDivisionError("not ours")), "info")
    assert ended.value.subgroup(ZeroDivisionError)
    assert ended.value.subgroup(NotYet)


PROGRAM = """
import asyncio
from imex_dra.cli.running import run_until_stopped

async def program():
    print("up", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.1)
        print("put away", flush=True)

run_until_stopped(program(), "info")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_a_program_puts_its_things_away_and_ends_with_0(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, number)
        assert process.stdout.read() == "put away\n"
        assert process.wait(20) == 0
