"""nvidia-imex-ctl: every call returns in time, whatever the tool does."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.imex.ctl import Connection, DomainNode, DomainView, ImexCtl
from tests.waiting import until_async

CONFIG = Path("/etc/nvidia-imex/config.cfg")


def shell(script: str, timeout: float = 20.0) -> ImexCtl:
    """The script gets the flags of nvidia-imex-ctl as $1, $2, …"""
    return ImexCtl(["sh", "-c", script, "nvidia-imex-ctl"], timeout=timeout)


@pytest.mark.parametrize("state", list(ImexState))
async def test_every_state_is_parsed(state: ImexState) -> None:
    assert await shell(f"echo {state}").state(CONFIG) is state


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
async def test_any_other_output_means_unavailable(script: str) -> None:
    assert await shell(script).state(CONFIG) is ImexState.UNAVAILABLE


async def test_the_tool_reads_the_configuration_of_the_daemon() -> None:
    assert (
        await shell('[ "$*" = "-c /etc/nvidia-imex/config.cfg -q" ] && echo READY').state(CONFIG)
        is ImexState.READY
    )
    view = await shell('[ "$*" = "-c /etc/nvidia-imex/config.cfg -N -j" ] && echo \'{"nodes":{}}\'').domain(CONFIG)
    assert view == DomainView({})


async def test_a_missing_tool_means_unavailable() -> None:
    missing = ImexCtl(["/no/such/nvidia-imex-ctl"])
    assert await missing.state(CONFIG) is ImexState.UNAVAILABLE
    assert await missing.domain(CONFIG) is None


@pytest.mark.parametrize(
    "script",
    ["exec sleep 600", "sleep 600; echo READY", "trap '' TERM INT; sleep 600; echo READY"],
    ids=["a process", "a process with a child", "a process that ignores signals"],
)
async def test_a_call_that_hangs_is_killed_with_all_its_children(script: str, tmp_path: Path) -> None:
    """On a busy machine it may not even start before the timeout: then it is called again with a longer one."""
    pid = tmp_path / "pid"
    for timeout in (0.5, 5, 50):
        if not pid.exists() or not pid.read_text().strip():
            assert (
                await shell(f"echo $$ > {pid}; {script}", timeout=timeout).state(CONFIG) is ImexState.UNAVAILABLE
            )
    group = pid.read_text().strip()
    await until_async(lambda: group not in live_process_groups())


def live_process_groups() -> set[str]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            found.add(group)
    return found


async def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    call = asyncio.create_task(shell(f"echo $$ > {pid}; exec sleep 600").state(CONFIG))
    await until_async(lambda: pid.exists() and pid.read_text().endswith("\n"))
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await until_async(lambda: pid.read_text().strip() not in live_process_groups())


@pytest.mark.parametrize("output", ["", "{", "[]", '{"nodes":[]}', '{"nodes":{"n1":{}}}', r"{\"nodes\":{\"\377"])
async def test_an_invalid_domain_view_is_none(output: str) -> None:
    assert await shell(f"printf '{output}'").domain(CONFIG) is None


async def test_a_large_domain_view_is_read_completely() -> None:
    script = (
        "import json; print(json.dumps({'nodes': {str(n): {'status': 'READY', 'host': 'x' * 500} "
        "for n in range(2000)}, 'status': 'UP'}))"
    )
    view = await ImexCtl([sys.executable, "-c", script], timeout=60.0).domain(CONFIG)
    assert view is not None
    assert len(view.nodes) == 2000


def node(**connections: str) -> DomainNode:
    return DomainNode(connections={int(key[1:]): Connection(status) for key, status in connections.items()})


C, N = "CONNECTED", "NEVER_CONNECTED"


@pytest.mark.parametrize(
    ("nodes", "index", "expected"),
    [
        ({}, 0, None),
        ({0: node(_0=C)}, 0, ()),
        ({0: node(_1=C), 1: node(_0=C)}, 0, (1,)),
        ({0: node(_1=C), 1: node(_0=N)}, 0, ()),
        ({0: node(_1=N), 1: node(_0=C)}, 0, ()),
        ({0: node(_1=C), 1: node()}, 0, ()),
        ({0: node(_1=C)}, 0, ()),
        ({1: node(_0=C)}, 0, None),
        ({10: node(_2=C, _9=C), 2: node(_10=C), 9: node(_10=C)}, 10, (2, 9)),
    ],
)
def test_a_member_is_connected_if_both_ends_report_it(
    nodes: dict[int, DomainNode], index: int, expected: tuple[int, ...] | None
) -> None:
    assert DomainView(nodes).connected_both_ways(index) == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({0: node(_0=C)}, set()),
        ({0: node(_1=C), 1: node(_0=N)}, {1}),
        ({0: node(_1=N), 1: node(_0=C)}, {1}),
        ({0: node(_1=C)}, {1}),
        ({0: node(_1=N, _2=N), 1: node(_0=N, _2=C), 2: node(_1=C)}, set()),
    ],
    ids=["itself", "this end", "the other end", "one that does not answer", "others"],
)
def test_a_node_is_linked_if_one_end_reports_a_connection(
    nodes: dict[int, DomainNode], expected: set[int]
) -> None:
    assert DomainView(nodes).connected_either_way(0) == expected


def test_the_json_of_nvidia_imex_ctl_is_parsed() -> None:
    text = """{"nodes":{"0":{"status":"READY","host":"10.0.0.1","hostName":"","version":"580.30","changed":true,
        "connections":{"0":{"host":"10.0.0.1","status":"CONNECTED","changed":true},
        "1":{"host":"10.0.0.2","status":"INVALID","changed":true},
        "2":{"host":"10.0.0.3","status":"CONNECTED","changed":true}}},
        "2":{"status":"READY","host":"10.0.0.3","hostName":"N/A","version":"580.30","changed":true,
        "connections":{"0":{"host":"10.0.0.1","status":"CONNECTED","changed":true}}}},
        "timestamp":"5/22/2025 19:46:40.891","status":"DEGRADED"}"""
    view = msgspec.json.decode(text, type=DomainView)
    assert view.nodes[0].connections[1].status == "INVALID"
    assert view.nodes[0].version == "580.30"
    assert view.connected_both_ways(0) == (2,)


TEXT = """Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
* - not part of the table

5/22/2025 19:46:40.891
Nodes:
Node #0   - 10.0.0.1    - READY                - Version: 580.30
Node #17  * 10.0.0.18   * READY                - Version: 580.30
Node #18  - 10.0.0.19   - UNAVAILABLE          - Version:

 Nodes From\\To  0   17
"""


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (TEXT, 17),
        (TEXT.replace("*", "-"), None),
        (TEXT.replace("- 10.0.0.1 ", "* 10.0.0.1 ").replace("   - READY ", "   * READY "), None),
        ("", None),
    ],
    ids=["one is marked", "none is marked", "two are marked", "no answer"],
)
async def test_the_index_that_nvidia_imex_takes_for_itself_is_read_from_its_text(
    text: str, index: int | None, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text(text)
    script = f'[ "$*" = "-c {CONFIG} -N" ] && cat {tmp_path}/text'
    assert await shell(script).own_index(CONFIG) == index


async def test_what_the_tool_said_last_is_kept_as_it_was() -> None:
    ctl = shell('[ "$3" = -q ] && echo READY || { echo "{}"; echo "node 3 does not answer" >&2; }')
    assert ctl.last_answers() == ""
    await ctl.domain(CONFIG)
    await ctl.state(CONFIG)
    lines = ctl.last_answers().splitlines()
    assert [line.partition("  # 20")[0] for line in lines] == [
        "$ nvidia-imex-ctl -q",
        "READY",
        "",
        "$ nvidia-imex-ctl -N -j",
        "{}",
        "node 3 does not answer",
    ]


async def test_why_the_tool_said_nothing_is_kept_too() -> None:
    missing = ImexCtl(["/no/such/nvidia-imex-ctl"])
    await missing.state(CONFIG)
    assert "/no/such/nvidia-imex-ctl cannot be started: No such file or directory" in missing.last_answers()
    hanging = shell("exec sleep 600", timeout=0.2)
    await hanging.state(CONFIG)
    assert "no answer within 0.2 s" in hanging.last_answers()
