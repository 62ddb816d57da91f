"""What is on a simulated node's disk after its power failed and came back."""

from pathlib import Path

from imex_dra.hardware.simulated import HardwareFile
from imex_dra.sandbox.noderoot import NodeRoot


def test_run_and_dev_are_empty_and_disks_are_not(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path)
    root.make(HardwareFile(boot_id="first", driver_version="580"), address="127.16.0.10")
    (tmp_path / "run/cdi").mkdir()
    for lost in ("run/cdi/spec.json", "run/daemon.sock", "dev/nvidia-caps-imex-channels/channel7"):
        (tmp_path / lost).touch()
    for kept in ("run/fabric-id", "etc/nvidia-imex/membership.json"):
        (tmp_path / kept).write_text("kept")
    root.boot("second")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["fabric-id"]
    assert not list((tmp_path / "dev/nvidia-caps-imex-channels").iterdir())
    assert (tmp_path / "etc/nvidia-imex/membership.json").read_text() == "kept"
    assert root.hardware() == HardwareFile(boot_id="second", driver_version="580")
