"""Our specs in a directory that belongs to everybody."""

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


def test_a_spec_is_what_the_runtime_expects_and_nothing_more(tmp_path: Path) -> None:
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


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    specs = Directory(tmp_path / "made" / "when needed")
    specs.write("u1", EDITS, {"a": "b"})
    assert specs.read("u1") == Spec("0.6.0", "imex-dra.io/channel", (Device("u1", EDITS),), {"a": "b"})
    assert specs.claims() == {"u1"}


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"kind":"\xff"}', b'{"cdiVersion":"0.6.0"}'])
def test_what_can_t_be_understood_is_as_good_as_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "imex-dra.io-channel_u1.json").write_bytes(content)
    assert Directory(tmp_path).read("u1") is None


def test_files_of_others_are_neither_listed_nor_touched(tmp_path: Path) -> None:
    theirs = {
        "nvidia.com-gpu.yaml": "a",
        "imex-dra.io-channel.json": "b",
        "imex-dra.io-channels_u1.json": "c",
        "k8s.compute-domain.nvidia.com-claim_u1.json": "d",
        ".nvidia.com-gpu.yaml.tmp": "e",
    }
    for name, content in theirs.items():
        (tmp_path / name).write_text(content)
    specs = Directory(tmp_path)
    specs.write("u1", EDITS, {})
    specs.remove_leftovers()
    assert specs.claims() == {"u1"}
    specs.remove("u1")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == theirs


def test_removing_what_is_not_there_is_fine_even_without_a_directory(tmp_path: Path) -> None:
    Directory(tmp_path).remove("u1")
    nowhere = Directory(tmp_path / "nowhere")
    nowhere.remove("u1")
    nowhere.remove_leftovers()
    assert nowhere.claims() == set()
    assert nowhere.read("u1") is None


def test_edits_add_up_in_order() -> None:
    more = ContainerEdits(env=("B=2",), device_nodes=(DeviceNode("/dev/y", 238, 1),))
    assert EDITS + more == ContainerEdits(
        ("A=1", "B=2"), (*EDITS.device_nodes, DeviceNode("/dev/y", 238, 1)), EDITS.mounts
    )
    assert EDITS + ContainerEdits() == ContainerEdits() + EDITS == EDITS
