"""Every reason has one function, and every function explains its reason with all of its arguments."""

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import imex_dra
from imex_dra.api import claimreasons, domainreasons, nodereasons, partitionreasons
from imex_dra.api.reasons import Explanation, Reason, listed

MODULES = (claimreasons, domainreasons, nodereasons, partitionreasons)

EXPLAIN: dict[str, Callable[..., Explanation]] = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if typing.get_type_hints(function).get("return") is Explanation
}

PACKAGE = Path(imex_dra.__file__).parent

VALUES: dict[object, list[Any]] = {
    str: ["alpha", "bravo", "charlie", "delta", "echo"],
    int: [41, 42, 43],
    Sequence[str]: [["golf", "hotel"], ["india", "juliett"]],
}


def arguments(function: Callable[..., Explanation]) -> dict[str, Any]:
    """A distinctive value for every parameter."""
    values = {type_: iter(choices) for type_, choices in VALUES.items()}
    hints = typing.get_type_hints(function)
    return {name: next(values[hints[name]]) for name in inspect.signature(function).parameters}


def test_every_reason_has_exactly_one_function_of_its_name() -> None:
    produced = {name: function(**arguments(function)).reason for name, function in EXPLAIN.items()}
    assert produced == {reason.name.lower(): reason for reason in Reason}


def test_every_reason_is_given_by_a_program() -> None:
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if not path.match("api/*reasons.py"))
    unused = [name for name in EXPLAIN if not re.search(rf"\b{name}\(", source)]
    assert unused == []


@pytest.mark.parametrize("name", EXPLAIN)
def test_a_message_is_one_plain_sentence(name: str) -> None:
    explanation = EXPLAIN[name](**arguments(EXPLAIN[name]))
    for message in (explanation.message(), explanation.message(waited=40.0)):
        first = message.split()[0]
        assert first == first.lower() or first in {
            "ComputeDomain",
            "NVLink",
            "NVLinkPartition",
            "ResourceClaimTemplate",
        }
        assert not message.endswith((".", ";", ":", " "))
        assert ". " not in message
        assert "\n" not in message
        assert "  " not in message


@pytest.mark.parametrize("name", EXPLAIN)
def test_a_message_contains_every_argument(name: str) -> None:
    values = arguments(EXPLAIN[name])
    message = EXPLAIN[name](**values).message()
    for value in values.values():
        for part in value if isinstance(value, list) else [value]:
            assert str(part) in message


@pytest.mark.parametrize("name", EXPLAIN)
def test_a_waited_time_is_stated_before_the_next_step(name: str) -> None:
    explanation = EXPLAIN[name](**arguments(EXPLAIN[name]))
    message = explanation.message(waited=39.6)
    assert message.startswith(f"{explanation.cause} (waited 40 s)")
    assert message.endswith(explanation.next_step)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, ""),
        (1, "n0"),
        (5, "n0, n1, n2, n3, n4"),
        (6, "n0, n1, n2, n3, n4 and 1 more"),
        (1000, "n0, n1, n2, n3, n4 and 995 more"),
    ],
)
def test_at_most_five_names_are_listed(count: int, expected: str) -> None:
    assert listed([f"n{number}" for number in range(count)]) == expected


def test_every_message_with_names_stays_short() -> None:
    many = [f"namespace-of-a-team/pod-{number:04}" for number in range(1000)]
    with_lists = [
        function
        for function in EXPLAIN.values()
        if any(hint == Sequence[str] for hint in typing.get_type_hints(function).values())
    ]
    assert with_lists
    for function in with_lists:
        values = {name: many if isinstance(value, list) else value for name, value in arguments(function).items()}
        assert len(function(**values).message()) < 1024


def test_optional_parts_and_plurals() -> None:
    unexplained = nodereasons.daemon_not_ready(node="n1", state="UNAVAILABLE", problem="")
    assert unexplained.cause == "the IMEX daemon of node n1 is UNAVAILABLE, not READY"
    assert (
        partitionreasons.channels_held(count=1, blockers=["n1"]).cause
        == "1 released channel cannot be reused yet: n1"
    )
    assert (
        partitionreasons.channels_held(count=2, blockers=["n1"]).cause
        == "2 released channels cannot be reused yet: n1"
    )
