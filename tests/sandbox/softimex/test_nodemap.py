from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.nodemap import LocalNode

HOSTS = {"a": "127.1.0.10", "b": "127.1.0.11", "unused": "127.0.0.2"}

names = st.text("abcdefgh-0123456789.", min_size=1, max_size=8)
addresses = st.ip_addresses(v=4).map(str)


def test_the_order_of_entries_defines_the_ids_and_blank_lines_and_comments_are_ignored() -> None:
    assert nodemap.parse_nodes("a\n\n  b  \n# c\n10.0.0.1\n") == ("a", "b", "10.0.0.1")


def test_the_local_node_is_the_entry_that_resolves_to_an_own_address() -> None:
    assert nodemap.find_local_node(["unused", "a", "b"], HOSTS, ["127.1.0.11"]) == LocalNode(2, "127.1.0.11")
    assert nodemap.find_local_node(["10.0.0.1", "10.0.0.2"], {}, ["10.0.0.2"]) == LocalNode(1, "10.0.0.2")


def test_the_bind_address_selects_among_own_addresses() -> None:
    own = ["127.1.0.10", "127.1.0.11"]
    assert nodemap.find_local_node(["a", "b"], HOSTS, own, "127.1.0.11") == LocalNode(1, "127.1.0.11")
    assert nodemap.find_local_node(["a", "b"], HOSTS, own, "127.1.0.12") is None


def test_without_a_matching_address_there_is_no_local_node() -> None:
    assert nodemap.find_local_node(["a", "unknown"], HOSTS, ["127.9.9.9"]) is None


@given(st.lists(names, min_size=1), st.lists(names, min_size=1))
def test_map_keys_are_equal_only_for_equal_maps(one: list[str], other: list[str]) -> None:
    assert (nodemap.map_key(one) == nodemap.map_key(other)) == (one == other)


@given(st.lists(addresses, min_size=1, unique=True), st.data())
def test_every_address_finds_its_own_entry(entries: list[str], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(entries))
    assert nodemap.find_local_node(entries, {}, [own]) == LocalNode(entries.index(own), own)


def test_a_missing_or_empty_nodes_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(StartError, match=f"Failed to read node configuration file {path}"):
            nodemap.read_nodes(str(path))
