"""What the agent does to its child, seen by a child that writes down every signal it gets."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.child import Child
from tests.daemon.node import DIES_WITH_US, Node, Rack, eventually

CHILD = """
echo $$ >> {place}/starts
sleep {deaf}
trap 'date +%s.%N >> {place}/signals' USR1
touch {place}/up
while :; do sleep 0.02; done
"""
CTL = """
case "$*" in *-q*) [ -e {place}/up ] && echo READY ;; *) echo '{{"nodes":{{}}}}' ;; esac
"""


class Recorder:
    """Stands for nvidia-imex; deaf for a while after its start, as every program is."""

    def __init__(self, place: Path, deaf: float = 0.0) -> None:
        self.place = place
        self.programs = {
            "command": [*DIES_WITH_US, "sh", "-c", CHILD.format(place=place, deaf=deaf), "nvidia-imex"],
            "ctl_command": ["sh", "-c", CTL.format(place=place), "nvidia-imex-ctl"],
        }

    @property
    def signals(self) -> list[float]:
        path = self.place / "signals"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def starts(self) -> int:
        return len((self.place / "starts").read_text().splitlines())


async def test_many_moves_at_once_are_two_signals_an_interval_apart(
    rack: Rack, node: Node, tmp_path: Path
) -> None:
    recorder, interval = Recorder(tmp_path), 2.0
    async with node.running(**recorder.programs, remap_interval=interval), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0, 1))
        await speaker.until_ready(0)
        lists = [
            rack.membership(0, 0, 1, generation=generation, addresses={"1": rack.address(generation)})
            for generation in range(2, 8)
        ]
        await speaker.tell(lists[0])
        await speaker.until_ready(0, generation=2)
        await speaker.tell(*lists[1:])
        await speaker.until_ready(0, generation=7)
        await eventually(lambda: len(recorder.signals) == 2)
        first, second = recorder.signals
        assert second - first >= interval * 0.5
        assert node.names()["1"] == rack.address(7)
        assert {state.generation for state in speaker.heard} == {0, 1, 2, 7}
        assert recorder.starts == 1


async def test_a_generation_that_moves_nobody_disturbs_nobody(rack: Rack, node: Node, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    async with node.running(**recorder.programs), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0, 1))
        await speaker.until_ready(0)
        await speaker.tell(rack.membership(0, 0, 1, generation=2))
        await speaker.until_ready(0, generation=2)
        assert (recorder.signals, recorder.starts) == ([], 1)


async def test_a_child_that_does_not_listen_yet_is_not_signalled_to_death(
    rack: Rack, node: Node, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path, deaf=0.5)
    async with node.running(**recorder.programs), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await eventually((tmp_path / "starts").exists)
        await speaker.tell(rack.membership(0, 0, 1, generation=2))
        await speaker.until_ready(0, generation=2)
        await eventually(lambda: len(recorder.signals) == 1)
        assert recorder.starts == 1
        assert node.names()["1"] == rack.address(1)
        assert not any(state.problem for state in speaker.heard)


async def test_a_hosts_file_that_can_t_be_written_is_tried_again_and_ends_nothing(
    rack: Rack, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, tries = Recorder(tmp_path), []

    def refuse(self: object, membership: object) -> None:
        tries.append(membership)
        raise OSError(30, "Read-only file system")

    async with node.running(**recorder.programs, remap_interval=0.1), node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        with monkeypatch.context() as patched:
            patched.setattr("imex_dra.imex.files.Files.write_hosts", refuse)
            await speaker.tell(rack.membership(0, 0, 1, generation=2))
            await eventually(lambda: len(tries) >= 2)
            assert speaker.heard[-1].generation == 1
        await speaker.until_ready(0, generation=2)
        assert recorder.starts == 1
        assert node.names()["1"] == rack.address(1)


async def test_one_that_ignores_being_told_to_stop_is_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path / 'pid'}; while :; do sleep 0.02; done"
    child = Child([*DIES_WITH_US, "sh", "-c", script], patience=0.2)
    run = asyncio.create_task(child.run())
    await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    run.cancel()
    async with asyncio.timeout(45):
        await asyncio.wait({run})
    assert run.cancelled()
    await eventually(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "nvidia-imex ended with exit code 0"),
        (
            "echo no such file; echo giving up >&2; exit 3",
            "nvidia-imex ended with exit code 3: no such file; giving up",
        ),
        (
            "for i in 1 2 3 4 5 6 7; do echo $i; done; kill -SEGV $$",
            "nvidia-imex ended with SIGSEGV: 3; 4; 5; 6; 7",
        ),
        (r"printf '\377'; exit 1", "nvidia-imex ended with exit code 1: \ufffd"),
    ],
)
async def test_how_it_ended_is_said_with_its_last_words(script: str, words: str) -> None:
    assert await Child(["sh", "-c", script]).run() == words


SPOILT = [
    b"\0\0\0\1{",
    b"\0\0\0\2[]",
    b"\0\0\0\2{}",
    b'\0\0\0\x11{"partition":"\xff"}',
    b"\xff\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0",
]


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_nonsense_on_the_socket_ends_that_connection_and_nothing_else(
    rack: Rack, node: Node, tmp_path: Path, spoilt: bytes
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running(**recorder.programs) as agent, node.speaker() as good, node.speaker() as bad:
        await good.tell(rack.membership(0, 0))
        await good.until_ready(0)
        bad.writer.write(spoilt)
        bad.writer.write_eof()
        await eventually(lambda: bad.hung_up)
        await good.tell(rack.membership(0, 0, generation=2))
        await good.until_ready(0, generation=2)
        assert not agent.done()
        assert recorder.starts == 1


async def test_a_listener_that_went_away_disturbs_nobody(rack: Rack, node: Node, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    async with node.running(**recorder.programs), node.speaker() as stays:
        async with node.speaker() as leaves:
            await leaves.tell(rack.membership(0, 0))
            await stays.until_ready(0)
            leaves.writer.transport.abort()
        for generation in range(2, 12):
            await stays.tell(rack.membership(0, 0, generation=generation))
        assert (await stays.until_ready(0, generation=11)).state is ImexState.READY


async def test_when_the_agent_ends_so_do_its_child_and_its_connections(
    rack: Rack, node: Node, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path)
    async with node.running(**recorder.programs) as agent, node.speaker() as speaker:
        await speaker.tell(rack.membership(0, 0))
        await speaker.until_ready(0)
        pid = int((tmp_path / "starts").read_text())
        agent.cancel()
        async with asyncio.timeout(45):
            await asyncio.wait({agent})
        assert not Path(f"/proc/{pid}").exists()
        await eventually(lambda: speaker.hung_up)


async def test_what_a_child_started_does_not_hide_the_child_s_end(tmp_path: Path) -> None:
    """It holds the output open, and goes on for longer than anybody waits."""
    script = f"sleep 600 & echo $! > {tmp_path}/left; echo its last words; exit 3"
    async with asyncio.timeout(60):
        assert await Child([*DIES_WITH_US, "sh", "-c", script]).run() == (
            "nvidia-imex ended with exit code 3: its last words"
        )
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


async def test_a_child_that_ends_no_line_is_listened_to_nevertheless() -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo its last words; exit 3"
    async with asyncio.timeout(60):
        assert (await Child([*DIES_WITH_US, "sh", "-c", script]).run()).endswith("its last words")


async def test_of_long_last_words_only_the_beginning_is_kept() -> None:
    script = "for i in 1 2; do echo $i; head -c 40000 /dev/zero | tr '\\0' x; echo; done; exit 3"
    async with asyncio.timeout(60):
        words = await Child([*DIES_WITH_US, "sh", "-c", script]).run()
    assert words == f"nvidia-imex ended with exit code 3: 1; {'x' * 500}; 2; {'x' * 500}"
