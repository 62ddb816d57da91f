"""Text to values: lines, YAML as kubectl reads it, and limits for hostile files."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from imex_dra.base.errors import Unreadable
from imex_dra.lint.documents import read_source
from imex_dra.lint.values import Value, from_plain


def documents(text: str) -> tuple[Value, ...]:
    return read_source("f", textwrap.dedent(text)).documents


def document(text: str) -> Value:
    (only,) = documents(text)
    return only


def test_every_value_knows_its_line() -> None:
    value = document("""\
        a:
          b: 1
          c:

          - x
          - d: {e: 2,
                f: 3}
        """)
    assert value["a"].line == 1
    assert value.at("a.b").line == 2
    assert value.at("a.c").line == 3, "an entry has the line of its key"
    assert [element.line for element in value.at("a.c").elements()] == [5, 6]
    assert value.at("a.c").elements()[1].at("d.f").line == 7


def test_a_missing_value_has_the_line_of_what_it_is_missing_in() -> None:
    value = document("""\
        a:
          b: text
        """)
    for path in ("a.c", "a.c.d.e"):
        assert not value.at(path).exists
        assert value.at(path).line == 1
    assert value.at("a.b.c").line == 2, "a text has no fields"
    assert (value.at("a.c").text, value.at("a.c").number, value.at("a.c").elements()) == ("", None, ())


def test_lines_go_on_over_several_documents() -> None:
    first, second = documents("a: 1\n---\n# comment\nb: 2\n...\n")
    assert (first["a"].line, second["b"].line) == (1, 4)


SCALARS = """
text 1 -18 +5 1_000 0x1F 0b11 0o17 017 08 1.5 .5 1e3 true Yes y off N ~ null 2026-11-17 12:30:00 900Gi
99999999999999999999999999999999999999999999999999
"""


def test_plain_scalars_are_resolved_as_kubectl_does() -> None:
    scalars = [*SCALARS.split(), "!!str 1", '"1"', "'true'"]
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\nspec: [{', '.join(scalars)}]\n"
    kubectl = [str(Path(sys.executable).with_name("kubectl")), "label", "--local", "-f", "-", "x=y", "-o", "json"]
    environment = {"KUBECONFIG": os.devnull}
    done = subprocess.run(
        kubectl, input=text, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert document(text)["spec"].plain() == json.loads(done.stdout)["spec"]


def test_aliases_and_merged_mappings_are_expanded() -> None:
    value = document("""\
        base: &base {a: 1, b: 2}
        other: &other {b: 3, c: 4}
        one: *base
        merged:
          <<: [*base, *other]
          a: 5
        """)
    assert value["one"].plain() == {"a": 1, "b": 2}
    assert value["one"].line == 3
    assert value["merged"].plain() == {"a": 5, "b": 2, "c": 4}


@pytest.mark.parametrize("indent", ["  ", "\t"])
def test_json_is_read_with_lines(indent: str) -> None:
    value = document(f'{{\n{indent}"kind": "Pod",\n{indent}"spec": {{"a": [1, "\\/x"]}}\n}}\n')
    assert value.plain() == {"kind": "Pod", "spec": {"a": [1, "/x"]}}
    assert value.at("spec.a").line == 3


def test_json_that_is_no_yaml_is_read_without_lines() -> None:
    value = document('{"a":\n "\\ud83d\\ude00"}')
    assert value["a"] == Value("\U0001f600", 1)
    assert document('{"a": "x\\ud83dy"}')["a"].text == "x?y", "half a pair cannot be printed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: }", "f:3: no valid YAML: did not find expected ',' or ']'"),
        ("a: 1\n b: 2\n", "f:2: no valid YAML: mapping values are not allowed in this context"),
        ("a: *b\n", "f:1: alias *b has no anchor before it"),
        ("x: 1\na: &a [*a]\n", "f:2: alias *a has no anchor before it"),
        ("a: &a 1\n---\nb: *a\n", "f:3: alias *a has no anchor before it"),
        ("\n" + "[" * 101 + "]" * 101, "f:2: it is nested more than 100 levels deep"),
        ("\n" + '{"a":' * 100_000, "f:2: it is nested more than 100 levels deep"),
        (
            '{"a": "\\ud800", "b": ' + "[" * 101 + "]" * 101 + "}",
            "f:1: no valid YAML: found invalid Unicode character escape code",
        ),
        ("a: \ud800\n", "f:1: no valid YAML: it has characters that are not Unicode text"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_source("f", text)
    assert str(refused.value) == message


def test_a_helm_template_is_recognized() -> None:
    with pytest.raises(Unreadable, match=r"^f:3: .*render it first, as in `helm template CHART \| imex lint -`$"):
        read_source("f", "kind: Pod\nmetadata:\n  {{- include labels . }}\n")


def test_aliases_cannot_exhaust_the_memory() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
    )
    with pytest.raises(Unreadable, match="it has more than 1000000 values, aliases included"):
        read_source("f", laughs)


def test_aliases_cannot_exhaust_the_stack() -> None:
    deep = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [[[[*a{n - 1}]]]]\n" for n in range(1, 400))
    with pytest.raises(Unreadable, match="it is nested more than 100 levels deep"):
        read_source("f", deep)


def test_comments_turn_off_rules_on_their_line_or_on_the_next() -> None:
    ignored = read_source(
        "f",
        "a: 1  # imex-lint: ignore IMEX101\n"
        "  # because of that; imex-lint: ignore imex102, IMEX103 IMEX104\n"
        "b: 2  # imex-lint: ignore IMEX105\n"
        "c: 3  # imex-lint: ignore everything\n",
    ).ignored
    assert ignored == {1: {"IMEX101"}, 3: {"IMEX102", "IMEX103", "IMEX104", "IMEX105"}}


def test_plain_values_become_values() -> None:
    plain = {"a": [1, "x", None, {"b": True}]}
    assert from_plain(plain).plain() == plain
    assert from_plain(plain, 7)["a"].elements()[3]["b"].line == 7


def test_texts_are_found_in_any_depth_and_in_order() -> None:
    value = from_plain({"a": ["x", 1, {"b": "y"}], "c": "z"})
    assert [text.text for text in value.texts()] == ["x", "y", "z"]
