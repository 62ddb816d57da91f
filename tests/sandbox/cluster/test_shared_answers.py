"""One query of an IMEX domain serves all nodes of its rack that ask at about the same time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imex_dra.imex.ctl import Reply
from imex_sandbox.cluster import imexprograms
from imex_sandbox.cluster.imexprograms import InProcessCtl, SharedAnswers
from imex_sandbox.softimex.noderoot import NodeRoot

HERE, THERE = {"imex-000": "127.1.0.10"}, {"imex-000": "127.1.0.11"}


class Daemons:
    def __init__(self) -> None:
        self.queries = 0

    def ask(self) -> Reply:
        self.queries += 1
        return Reply(b"%d" % self.queries)


def test_an_answer_is_shared_for_a_moment() -> None:
    daemons, answers = Daemons(), SharedAnswers(seconds=600)
    assert [answers.get("a", HERE, daemons.ask).output for _ in range(3)] == [b"1"] * 3
    daemons, answers = Daemons(), SharedAnswers(seconds=0)
    assert [answers.get("a", HERE, daemons.ask).output for _ in range(3)] == [b"1", b"2", b"3"]


def test_another_rack_or_another_member_list_is_another_question() -> None:
    daemons, answers = Daemons(), SharedAnswers(seconds=600)
    questions = [("a", HERE), ("b", HERE), ("a", HERE), ("a", THERE), ("a", THERE), ("b", HERE)]
    found = [answers.get(node_list, addresses, daemons.ask).output for node_list, addresses in questions]
    assert found == [b"1", b"2", b"1", b"3", b"3", b"2"]


def test_those_who_ask_meanwhile_wait_for_the_answer_and_other_racks_do_not() -> None:
    daemons, answers, replied = Daemons(), SharedAnswers(seconds=600), threading.Event()

    def slow() -> Reply:
        assert replied.wait(60)
        return daemons.ask()

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(answers.get, "a", HERE, slow) for _ in range(3)]
        assert answers.get("b", HERE, lambda: Reply(b"other")).output == b"other"
        replied.set()
        assert [one.result(60).output for one in waiting] == [b"1"] * 3


class Rack:
    """Two nodes whose queries are counted instead of sent to daemons."""

    def __init__(self, directory: Path, threads: ThreadPoolExecutor) -> None:
        self.queries: list[tuple[str, ...]] = []
        shared = SharedAnswers(seconds=600)
        self.roots = [directory / name for name in ("n0", "n1")]
        self.configs = [root / "imex" / "config.cfg" for root in self.roots]
        for config in self.configs:
            config.parent.mkdir(parents=True)
            config.with_name("nodes_config.cfg").write_text("imex-000\nimex-001\n")
        self._ctls = [InProcessCtl(root, threads, shared) for root in self.roots]

    def answers(self, arguments: list[str], root: NodeRoot) -> list[str]:
        self.queries.append((Path(root.path).name, *arguments[2:]))
        return [f"answer {len(self.queries)}"]

    async def reply(self, node: int, *flags: str) -> Reply:
        return await self._ctls[node]._query(self.configs[node], *flags)

    async def ask(self, node: int, *flags: str) -> bytes:
        return (await self.reply(node, *flags)).output


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rack]:
    with ThreadPoolExecutor(1) as threads:
        found = Rack(tmp_path, threads)
        monkeypatch.setattr(imexprograms, "answers", found.answers)
        yield found


async def test_only_the_state_of_the_domain_is_shared(rack: Rack) -> None:
    assert [await rack.ask(node, "-N", "-j") for node in (0, 1)] == [b"answer 1"] * 2
    # The text of `-N` marks the node that asks, and `-q` is its own state.
    for flags in (("-N",), ("-q",)):
        assert await rack.ask(0, *flags) != await rack.ask(1, *flags)
    assert rack.queries == [("n0", "-N", "-j"), ("n0", "-N"), ("n1", "-N"), ("n0", "-q"), ("n1", "-q")]


async def test_a_node_with_a_network_fault_asks_for_itself(rack: Rack) -> None:
    assert await rack.ask(0, "-N", "-j") == b"answer 1"
    (rack.roots[1] / "network.json").write_text('{"127.1.0.10": "drop"}')
    assert await rack.ask(1, "-N", "-j") == b"answer 2"
    assert await rack.ask(0, "-N", "-j") == b"answer 1"


async def test_a_node_without_a_member_list_says_so(rack: Rack) -> None:
    rack.configs[0].with_name("nodes_config.cfg").unlink()
    reply = await rack.reply(0, "-N", "-j")
    assert "nodes_config.cfg" in reply.problem
    assert rack.queries == []
