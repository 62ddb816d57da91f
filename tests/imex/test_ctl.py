"""Asking nvidia-imex-ctl: whatever it does, there is an answer in time."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.ctl import Connection, Ctl, DomainNode, DomainView

CONFIG = Path("/etc/nvidia-imex/config.cfg")


def shell(script: str, limit: float = 20.0) -> Ctl:
    """The script sees the ctl's flags as $1, $2, …"""
    return Ctl(["sh", "-c", script, "nvidia-imex-ctl"], CONFIG, limit=limit)


@pytest.mark.parametrize("state", list(ImexState))
async def test_every_state_is_understood(state: ImexState) -> None:
    assert await shell(f"echo {state}").state() is state


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo; exit 255",
        "echo NOT_READY",
        "echo READY or so",
        r"printf 'READY\377'",
        "echo READY >&2",
        "kill -9 $$",
    ],
)
async def test_what_is_no_state_means_that_nobody_answers(script: str) -> None:
    assert await shell(script).state() is ImexState.UNAVAILABLE


async def test_it_is_asked_with_the_daemons_own_configuration() -> None:
    assert await shell('[ "$*" = "-c /etc/nvidia-imex/config.cfg -q" ] && echo READY').state() is ImexState.READY
    answer = await shell('[ "$*" = "-c /etc/nvidia-imex/config.cfg -N -j" ] && echo \'{"nodes":{}}\'').domain()
    assert answer == DomainView({})


async def test_a_ctl_that_is_not_there_is_no_answer_and_no_crash() -> None:
    missing = Ctl(["/no/such/nvidia-imex-ctl"], CONFIG)
    assert await missing.state() is ImexState.UNAVAILABLE
    assert await missing.domain() is None


@pytest.mark.parametrize(
    "script",
    ["exec sleep 600", "sleep 600; echo READY", "trap '' TERM INT; sleep 600; echo READY"],
    ids=["a process", "a process with a child", "a process that ignores signals"],
)
async def test_one_that_hangs_is_given_up_with_all_its_children(script: str, tmp_path: Path) -> None:
    """On a busy machine it may not even have begun before it is given up: then once more, and with more time."""
    pid = tmp_path / "pid"
    for limit in (0.5, 5, 50):
        if not pid.exists() or not pid.read_text().strip():
            assert await shell(f"echo $$ > {pid}; {script}", limit=limit).state() is ImexState.UNAVAILABLE
    group = pid.read_text().strip()
    async with asyncio.timeout(60):
        while group in groups():
            await asyncio.sleep(0.01)


def groups() -> set[str]:
    """Process groups with somebody alive in them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            found.add(group)
    return found


async def test_a_question_that_nobody_waits_for_any_more_leaves_no_process(tmp_path: Path) -> None:
    question = asyncio.create_task(shell(f"echo $$ > {tmp_path / 'pid'}; exec sleep 600").state())
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        question.cancel()
        await asyncio.wait({question})
        assert question.cancelled()
        while (tmp_path / "pid").read_text().strip() in groups():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"nodes":[]}', r"{\"nodes\":{\"\377"])
async def test_a_domain_that_can_t_be_read_is_none(answer: str) -> None:
    assert await shell(f"printf '{answer}'").domain() is None


async def test_a_large_domain_is_read_whole() -> None:
    script = (
        "import json; print(json.dumps({'nodes': {str(n): {'status': 'READY', 'host': 'x' * 500} "
        "for n in range(2000)}, 'status': 'UP'}))"
    )
    view = await Ctl([sys.executable, "-c", script], CONFIG, limit=20.0).domain()
    assert view is not None
    assert (len(view.nodes), view.state) == (2000, "UP")


def node(**connections: str) -> DomainNode:
    return DomainNode("READY", "580.95.05", {key[1:]: Connection(status) for key, status in connections.items()})


C, N = "CONNECTED", "NEVER_CONNECTED"


@pytest.mark.parametrize(
    ("nodes", "slot", "expected"),
    [
        ({}, 0, ()),
        ({"0": node(_0=C)}, 0, ()),
        ({"0": node(_1=C), "1": node(_0=C)}, 0, (1,)),
        ({"0": node(_1=C), "1": node(_0=N)}, 0, ()),
        ({"0": node(_1=N), "1": node(_0=C)}, 0, ()),
        ({"0": node(_1=C), "1": node()}, 0, ()),
        ({"0": node(_1=C)}, 0, ()),
        ({"1": node(_0=C)}, 0, ()),
        ({"10": node(_2=C, _9=C), "2": node(_10=C), "9": node(_10=C)}, 10, (2, 9)),
    ],
)
def test_connected_is_who_both_ends_say_is(
    nodes: dict[str, DomainNode], slot: int, expected: tuple[int, ...]
) -> None:
    assert DomainView(nodes).connected_both_ways(slot) == expected


def test_the_json_of_the_original_is_understood() -> None:
    text = """{"nodes":{"0":{"status":"READY","host":"10.0.0.1","hostName":"","version":"580.30","changed":true,
        "connections":{"0":{"host":"10.0.0.1","status":"CONNECTED","changed":true},
        "1":{"host":"10.0.0.2","status":"INVALID","changed":true}}}},
        "timestamp":"5/22/2025 19:46:40.891","status":"DEGRADED"}"""
    view = msgspec.json.decode(text, type=DomainView)
    assert view.nodes["0"].connections["1"].status == "INVALID"
    assert view.state == "DEGRADED"
