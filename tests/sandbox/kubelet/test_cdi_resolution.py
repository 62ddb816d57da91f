"""CDI device names are resolved to container edits by the rules of the CDI specification."""

import json
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox.kubelet.cdi import NO_EDITS, resolve


def write(directory: Path, file: str, kind: str, *names: str, **edits: Any) -> None:
    directory.mkdir(exist_ok=True)
    devices = [{"name": name, "containerEdits": {"env": [f"{name}={directory.name}"]}} for name in names]
    spec = {"cdiVersion": "0.6.0", "kind": kind, "devices": devices, "containerEdits": edits}
    (directory / file).write_text(json.dumps(spec))


def test_without_devices_no_directory_is_read(tmp_path: Path) -> None:
    assert resolve([tmp_path / "nowhere"], []) == NO_EDITS


def test_the_edits_of_a_spec_apply_once_and_before_those_of_its_devices(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "v.io/c", "one", "two", env=["ALL=1"])
    assert resolve([tmp_path / "low"], ["v.io/c=one", "v.io/c=two"]).env == ("ALL=1", "one=low", "two=low")


def test_a_later_directory_overrides_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "v.io/c", "one")
    write(tmp_path / "high", "b.json", "v.io/c", "one")
    assert resolve([tmp_path / "low", tmp_path / "high"], ["v.io/c=one"]).env == ("one=high",)


def test_a_device_defined_twice_in_a_directory_cannot_be_resolved(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "v.io/c", "one")
    write(tmp_path / "low", "b.json", "v.io/c", "one", "two")
    with pytest.raises(Rejected, match=r"unresolvable CDI devices v\.io/c=one$"):
        resolve([tmp_path / "low"], ["v.io/c=one", "v.io/c=two"])


def test_invalid_files_do_not_affect_other_specs(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "v.io/c", "one")
    (tmp_path / "low" / "broken.json").write_text("{")
    (tmp_path / "low" / "other.yaml").write_text("kind: 7")
    (tmp_path / "low" / "readme.txt").write_text("{")
    assert resolve([tmp_path / "low"], ["v.io/c=one"]).env == ("one=low",)


def test_specs_may_be_yaml(tmp_path: Path) -> None:
    (tmp_path / "y.yaml").write_text(
        'cdiVersion: "0.6.0"\nkind: v.io/c\ndevices:\n- name: x\n  containerEdits:\n    deviceNodes:\n'
        "    - {path: /dev/x, hostPath: /dev/y, type: c, major: 238, minor: 7, fileMode: 438}\n"
    )
    (node,) = resolve([tmp_path], ["v.io/c=x"]).device_nodes
    assert (node.path, node.host_path) == ("/dev/x", "/dev/y")


@pytest.mark.parametrize(
    "edit",
    [
        {"hooks": [{"hookName": "createRuntime", "path": "/bin/true"}]},
        {"additionalGids": [44]},
        {"netDevices": [{"hostInterfaceName": "eth0", "name": "eth1"}]},
        {"intelRdt": {"closID": "x"}},
    ],
)
def test_unsupported_edits_are_rejected_by_name(tmp_path: Path, edit: dict[str, Any]) -> None:
    write(tmp_path / "low", "a.json", "v.io/c", "one", **edit)
    (kind,) = edit
    with pytest.raises(Rejected, match=f"v.io/c=one: simulated nodes do not support the CDI edits {kind}$"):
        resolve([tmp_path / "low"], ["v.io/c=one"])
