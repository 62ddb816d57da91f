import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.softimex import fabric, noderoot, persistence
from imex_dra.softimex.errors import StartError
from imex_dra.softimex.noderoot import DROP, NodeRoot


def test_files_are_read_anew_when_they_change(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    assert root.network() == {}
    (tmp_path / "network.json").write_text('{"127.1.0.10": "drop", "127.1.0.11": 20}')
    assert root.network() == {"127.1.0.10": DROP, "127.1.0.11": 0.02}
    (tmp_path / "network.json").unlink()
    assert root.network() == {}


def test_half_a_file_is_no_news(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    (tmp_path / "hosts").write_text("127.1.0.10 a\n")
    (tmp_path / "network.json").write_text('{"127.1.0.10": "drop"}')
    assert root.network() == {"127.1.0.10": DROP}
    (tmp_path / "network.json").write_text('{"127.1.0.10": "dr')
    assert root.network() == {"127.1.0.10": DROP}
    assert root.hosts() == {"a": "127.1.0.10"}


def test_hardware_tells_version_partition_gpus_and_what_is_wrong(tmp_path: Path) -> None:
    content = {"driverVersion": "580.1", "partition": "u.1", "gpus": [{}, {}], "fabric": {"state": "ok"}}
    (tmp_path / "hardware.json").write_text(json.dumps(content))
    assert NodeRoot(tmp_path).hardware() == ("580.1", "u.1", 2, "")
    broken = noderoot.parse_hardware('{"fabric": {"state": "broken", "reason": "cliques disagree"}}')
    assert broken.problem == "the fabric of the node is broken: cliques disagree"
    assert NodeRoot(tmp_path / "none").hardware().problem


@given(st.text(max_size=30) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_any_content_is_understood_or_a_value_error(text: str) -> None:
    for parse in (noderoot.parse_hardware, noderoot.parse_network):
        try:
            parse(text)
        except (ValueError, TypeError, OverflowError):
            continue


def test_the_root_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMEX_NODE_ROOT", raising=False)
    with pytest.raises(StartError, match="IMEX_NODE_ROOT"):
        noderoot.from_environment()


def test_importers_are_remembered_under_their_map_only(tmp_path: Path) -> None:
    path = tmp_path / "persist.dat"
    persistence.Persistence(str(path), "map").save({3, 1})
    assert persistence.Persistence(str(path), "map").load() == {1, 3}
    assert persistence.Persistence(str(path), "other").load() == frozenset()


def test_nothing_is_remembered_once_nobody_imports(tmp_path: Path) -> None:
    path = tmp_path / "persist.dat"
    saved = persistence.Persistence(str(path), "map")
    saved.save({1})
    saved.save(())
    assert not path.exists()


def test_files_of_run_that_are_no_text_are_as_good_as_none(tmp_path: Path) -> None:
    for name in ("persist.dat", "fabric-id"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    assert persistence.Persistence(str(tmp_path / "persist.dat"), "map").load() == frozenset()
    assert fabric.node_id(str(tmp_path)) == (tmp_path / "fabric-id").read_text().strip()


@given(
    st.text(max_size=40)
    | st.dictionaries(st.sampled_from(["key", "importers"]), st.lists(st.floats())).map(json.dumps)
)
def test_any_persisted_text_lists_somebody_or_nobody(text: str) -> None:
    assert isinstance(persistence.importers(text, "map"), frozenset)
