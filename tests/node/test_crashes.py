"""Killed at any call, restarted, asked again: the ledger is right, nothing leaks, nothing is held twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from imex_dra.base.errors import NotYet
from tests.node.desk import Desk
from tests.node.facts import PARTITION
from tests.node.prepared import prepared

NEIGHBOUR = {"neighbour": 1}
BOTH = {"neighbour": 1, "c1": 7}


def wrecks(deed: str, directory: Path, *, at_least: int) -> list[Desk]:
    """What every killed process left behind, after a restart; the last one was not killed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.crashes", deed, str(directory)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    died = int(done.stdout.splitlines()[-1])
    assert died >= at_least, "fewer calls than there must be: the list of calls is too short"
    desks = [Desk(directory / str(number)) for number in range(died + 1)]
    for desk in desks:
        desk.ledger().tidy()
        expect_consistent(desk)
    return desks


def expect_consistent(desk: Desk) -> None:
    held = desk.held()
    named = {f"imex-dra.io-channel_{uid}.json" for uid in desk.specs()}
    files = {"imex-dra.json", "imex-dra.lock", "imex-dra.unreadable"} | named
    assert desk.files() <= files, "something leaked"
    assert desk.specs().keys() <= held.keys(), "a spec that nobody owns"


def expect_held(desk: Desk, expected: dict[str, int]) -> None:
    assert desk.held() == desk.specs() == expected
    for channel in expected.values():
        with pytest.raises(NotYet, match="still held"):
            desk.enter(prepared("thief", channel=channel, domain="rival"), since=desk.stored().calls)


def test_preparing(tmp_path: Path) -> None:
    outcomes = set()
    for desk in wrecks("enter", tmp_path, at_least=9):
        outcomes.add(tuple(desk.held()))
        assert desk.held() in (NEIGHBOUR, BOTH)
        expect_held(desk, desk.held())
        desk.enter(prepared("c1", channel=7), since=desk.stored().calls)
        expect_held(desk, BOTH)
    assert outcomes == {("neighbour",), ("neighbour", "c1")}


def test_preparing_for_the_first_time_ever(tmp_path: Path) -> None:
    for desk in wrecks("enter-first", tmp_path, at_least=9):
        assert desk.held() == desk.specs()
        desk.enter(prepared("c1", channel=7), since=desk.stored().calls)
        expect_held(desk, {"c1": 7})


def test_preparing_and_then_the_pod_is_gone(tmp_path: Path) -> None:
    for desk in wrecks("enter", tmp_path, at_least=9):
        desk.ledger().strike("c1")
        expect_held(desk, NEIGHBOUR)


def test_preparing_again_after_a_reboot_with_another_channel(tmp_path: Path) -> None:
    for desk in wrecks("enter-after-reboot", tmp_path, at_least=9):
        assert desk.held() in (BOTH, {"neighbour": 1, "c1": 5})
        desk.enter(prepared("c1", channel=7), since=desk.stored().calls)
        expect_held(desk, BOTH)
        assert desk.stored().claims["c1"].boot_id == "boot-1"


def test_unpreparing(tmp_path: Path) -> None:
    for desk in wrecks("strike", tmp_path, at_least=6):
        assert desk.held() in (NEIGHBOUR, BOTH)
        desk.ledger().strike("c1")
        expect_held(desk, NEIGHBOUR)


def test_promising(tmp_path: Path) -> None:
    for desk in wrecks("promise", tmp_path, at_least=4):
        assert desk.stored().promised(PARTITION) in (0, 4)
        assert desk.ledger().promise(PARTITION, 4).promised(PARTITION) == 4
        expect_held(desk, BOTH)


def test_unpreparing_and_then_the_kubelet_asks_for_the_claim_after_all(tmp_path: Path) -> None:
    for desk in wrecks("strike", tmp_path, at_least=6):
        if desk.held() == BOTH:
            desk.ledger().mend(prepared("c1", channel=7))
        else:
            desk.enter(prepared("c1", channel=7), since=desk.stored().calls)
        expect_held(desk, BOTH)


def test_mending_after_a_driver_reload(tmp_path: Path) -> None:
    for desk in wrecks("mend", tmp_path, at_least=5):
        assert desk.held() == desk.specs() == BOTH
        desk.ledger().mend(prepared("c1", channel=7))
        assert desk.spec("c1")["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] == 99
        expect_held(desk, BOTH)


def test_rebuilding_an_unreadable_checkpoint(tmp_path: Path) -> None:
    for desk in wrecks("rebuild", tmp_path, at_least=8):
        expect_held(desk, BOTH)
        assert (desk.checkpoint.with_suffix(".unreadable")).read_bytes() == b"spoilt"


def test_tidying(tmp_path: Path) -> None:
    for desk in wrecks("tidy", tmp_path, at_least=4):
        expect_held(desk, BOTH)
