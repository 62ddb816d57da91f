"""Our CDI specs in a directory that other drivers use too."""

from pathlib import Path

import msgspec
import pytest

from imex_dra.cdi.directory import Directory
from imex_dra.cdi.spec import ContainerEdits, Device, DeviceNode, Mount, Spec, device_id

EDITS = ContainerEdits(
    env=("A=1",),
    device_nodes=(DeviceNode("/dev/x", 238, 0, "c", 0o666, "rw"),),
    mounts=(Mount("/on/host", "/in/container", ("rw", "bind")),),
)


def test_a_spec_has_the_format_of_the_cdi_specification(tmp_path: Path) -> None:
    Directory(tmp_path).write("u1", EDITS, {"a": "b"})
    (path,) = tmp_path.iterdir()
    assert path.name == "imex-dra.io-channel_u1.json"
    assert msgspec.json.decode(path.read_bytes()) == {
        "cdiVersion": "0.6.0",
        "kind": "imex-dra.io/channel",
        "annotations": {"a": "b"},
        "devices": [
            {
                "name": "u1",
                "containerEdits": {
                    "env": ["A=1"],
                    "deviceNodes": [
                        {"path": "/dev/x", "major": 238, "type": "c", "fileMode": 438, "permissions": "rw"}
                    ],
                    "mounts": [
                        {"hostPath": "/on/host", "containerPath": "/in/container", "options": ["rw", "bind"]}
                    ],
                },
            }
        ],
    }
    assert device_id("u1") == "imex-dra.io/channel=u1"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_written_spec_can_be_read_back(tmp_path: Path) -> None:
    specs = Directory(tmp_path / "created" / "on demand")
    specs.write("u1", EDITS, {"a": "b"})
    assert specs.read("u1") == Spec("0.6.0", "imex-dra.io/channel", (Device("u1", EDITS),), {"a": "b"})
    assert specs.claims() == {"u1"}


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"kind":"\xff"}', b'{"cdiVersion":"0.6.0"}'])
def test_a_missing_or_malformed_spec_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "imex-dra.io-channel_u1.json").write_bytes(content)
    assert Directory(tmp_path).read("u1") is None


def test_files_of_other_drivers_are_neither_listed_nor_removed(tmp_path: Path) -> None:
    others = {
        "nvidia.com-gpu.yaml": "a",
        "imex-dra.io-channel.json": "b",
        "imex-dra.io-channels_u1.json": "c",
        "k8s.compute-domain.nvidia.com-claim_u1.json": "d",
        ".nvidia.com-gpu.yaml.tmp": "e",
    }
    for name, content in others.items():
        (tmp_path / name).write_text(content)
    specs = Directory(tmp_path)
    specs.write("u1", EDITS, {})
    specs.remove_temporary_files()
    assert specs.claims() == {"u1"}
    specs.remove("u1")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == others


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    specs = Directory(tmp_path)
    specs.write("u1", EDITS, {})
    (tmp_path / ".imex-dra.io-channel_u1.json.k3x9").write_bytes(b"{")
    specs.remove_temporary_files()
    assert [path.name for path in tmp_path.iterdir()] == ["imex-dra.io-channel_u1.json"]


def test_removing_a_missing_spec_succeeds_even_without_the_directory(tmp_path: Path) -> None:
    Directory(tmp_path).remove("u1")
    missing = Directory(tmp_path / "missing")
    missing.remove("u1")
    missing.remove_temporary_files()
    assert missing.claims() == set()
    assert missing.read("u1") is None


def test_container_edits_are_concatenated_in_order() -> None:
    more = ContainerEdits(env=("B=2",), device_nodes=(DeviceNode("/dev/y", 238, 1),))
    assert EDITS + more == ContainerEdits(
        ("A=1", "B=2"), (*EDITS.device_nodes, DeviceNode("/dev/y", 238, 1)), EDITS.mounts
    )
    assert EDITS + ContainerEdits() == ContainerEdits() + EDITS == EDITS
