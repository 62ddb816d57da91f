"""One query of an IMEX domain serves all nodes of its rack that ask at about the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

from imex_dra.imex.ctl import Reply
from imex_sandbox.cluster.imexprograms import SharedAnswers

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
