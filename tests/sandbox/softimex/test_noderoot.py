"""The files of a simulated node, those that the daemon reads and those that it writes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex import noderoot, rundir
from imex_sandbox.softimex.errors import StartError
from imex_sandbox.softimex.noderoot import DROP, NodeRoot
from imex_sandbox.softimex.rundir import PersistFile
from imex_sandbox.softimex.sockets import is_address


def test_files_are_read_again_after_they_changed(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    assert root.network() == {}
    (tmp_path / "network.json").write_text('{"127.1.0.10": "drop", "127.1.0.11": 20}')
    assert root.network() == {"127.1.0.10": DROP, "127.1.0.11": 0.02}
    (tmp_path / "network.json").unlink()
    assert root.network() == {}


@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed: install the package iproute2")
def test_without_a_list_of_addresses_those_of_the_network_namespace_count(tmp_path: Path) -> None:
    script = """
ip link set lo up
ip address add 198.18.0.9/24 dev lo
ip address add 2001:db8::9/64 dev lo
exec "$@"
"""
    show = f"from imex_sandbox.softimex.noderoot import NodeRoot; print(*NodeRoot({str(tmp_path)!r}).addresses())"
    unshare = ["unshare", "--user", "--map-root-user", "--net", "sh", "-ec", script, "sh"]
    argv = [*unshare, sys.executable, "-c", show]
    found = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert set(found) == {"127.0.0.1", "198.18.0.9", "::1", "2001:db8::9"}
    (tmp_path / "addresses").write_text("127.1.0.10\n")
    assert NodeRoot(tmp_path).addresses() == ("127.1.0.10",)


def test_an_invalid_file_keeps_its_last_valid_content(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    (tmp_path / "hosts").write_text("127.1.0.10 a\n")
    (tmp_path / "network.json").write_text('{"127.1.0.10": "drop"}')
    assert root.network() == {"127.1.0.10": DROP}
    (tmp_path / "network.json").write_text('{"127.1.0.10": "dr')
    assert root.network() == {"127.1.0.10": DROP}
    assert root.hosts() == {"a": "127.1.0.10"}


def test_hardware_has_the_version_the_partition_the_gpus_and_the_problem(tmp_path: Path) -> None:
    content = {"driverVersion": "580.1", "partition": "u.1", "gpus": [{}, {}], "fabric": {"state": "ok"}}
    (tmp_path / "hardware.json").write_text(json.dumps(content))
    assert NodeRoot(tmp_path).hardware() == ("580.1", "u.1", 2, "")
    broken = noderoot.parse_hardware('{"fabric": {"state": "broken", "reason": "cliques differ"}}')
    assert broken.problem == "the fabric of the node is broken: cliques differ"
    assert NodeRoot(tmp_path / "none").hardware().problem


def test_the_hosts_file_has_the_syntax_of_etc_hosts() -> None:
    text = "127.1.0.10 a alias # comment\n# 127.1.0.12 c\n127.1.0.99 a\nnot-an-address d\n\nfd00::1\te\n"
    assert noderoot.parse_hosts(text) == {"a": "127.1.0.10", "alias": "127.1.0.10", "e": "fd00::1"}


@given(st.text())
def test_any_text_can_be_a_hosts_file(text: str) -> None:
    assert all(is_address(address) for address in noderoot.parse_hosts(text).values())


@given(st.text(max_size=30) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_any_content_is_valid_or_an_expected_error(text: str) -> None:
    for parse in (noderoot.parse_hardware, noderoot.parse_network):
        try:
            parse(text)
        except (ValueError, TypeError, OverflowError):
            continue


def test_the_node_root_variable_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMEX_NODE_ROOT", raising=False)
    with pytest.raises(StartError, match="IMEX_NODE_ROOT"):
        noderoot.from_environment()


def test_persisted_importers_are_ignored_under_another_node_map(tmp_path: Path) -> None:
    path = tmp_path / "persist.dat"
    PersistFile(str(path), "map").save({3, 1})
    assert PersistFile(str(path), "map").load() == {1, 3}
    assert PersistFile(str(path), "other").load() == frozenset()


def test_the_persist_file_is_removed_with_the_last_importer(tmp_path: Path) -> None:
    path = tmp_path / "persist.dat"
    saved = PersistFile(str(path), "map")
    saved.save({1})
    saved.save(())
    assert not path.exists()


def test_binary_files_in_run_are_ignored(tmp_path: Path) -> None:
    for name in ("persist.dat", "fabric-id"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    assert PersistFile(str(tmp_path / "persist.dat"), "map").load() == frozenset()
    assert rundir.fabric_id(str(tmp_path)) == (tmp_path / "fabric-id").read_text().strip()


@given(
    st.text(max_size=40)
    | st.dictionaries(st.sampled_from(["key", "importers"]), st.lists(st.floats())).map(json.dumps)
)
def test_any_text_can_be_a_persist_file(text: str) -> None:
    assert isinstance(rundir.parse_importers(text, "map"), frozenset)
