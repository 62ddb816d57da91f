"""The file of stand-ins, as `imex up --stand-ins` reads it."""

from pathlib import Path

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.kubelet.config import StandIn, load_stand_ins

HEAD = "apiVersion: sandbox.imex-dra.io/v1\nkind: StandIns\n"


def test_rules_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "stand-ins.yaml"
    file.write_text(
        f"{HEAD}rules:\n- {{image: 'nvcr.io/*', argv: [sleep, '5']}}\n- {{command: '*', argv: ['true']}}\n"
    )
    assert load_stand_ins(file) == (StandIn(("sleep", "5"), image="nvcr.io/*"), StandIn(("true",), command="*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}rules: [{{image: a}}]", r"missing required field `argv` - at `\$.rules\[0\]`"),
        (f"{HEAD}rules: [{{imagine: a, argv: [b]}}]", "unknown field `imagine`"),
        (HEAD.replace("StandIns", "Cluster"), "kind"),
        ("rules: [", "is not a valid StandIns file"),
        ("\x80", "is not a valid StandIns file"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "stand-ins.yaml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=words) as refusal:
        load_stand_ins(file)
    assert str(file) in str(refusal.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"cannot read .*: No such file"):
        load_stand_ins(tmp_path / "none.yaml")
